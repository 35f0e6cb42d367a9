// The tensors of a decoder, and the list that names them. Loading, initialization, export and the
// optimizer all iterate over that list.
//
// Shapes: H hidden size, I intermediate size, V vocabulary size, D head_dim, Q = heads * D,
// K = key-value heads * D. Projections are stored [out, in].
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <vector>

#include "common/model/architectures/architecture.h"
#include "common/model/config/model_config.h"
#include "common/model/config/tensor_parallel.h"
#include "common/model/layers/moe.h"
#include "kernels/torch/gemm/lora/low_rank.h"

namespace taopd {

struct Projection {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], or undefined
  LowRankAdapter adapter = {};
};

struct LayerWeights {
  at::Tensor input_norm_H;
  Projection q_proj;              // [Q, H]
  Projection k_proj;              // [K, H]
  Projection v_proj;              // [K, H]
  Projection o_proj;              // [H, Q]
  at::Tensor q_norm_D, k_norm_D;  // undefined without qk_norm
  at::Tensor post_attention_norm_H;
  Projection gate_proj;  // [I, H]
  Projection up_proj;    // [I, H]
  Projection down_proj;  // [H, I]
  MoeWeights moe;        // replaces the three projections above in a sparse layer
};

struct ModelWeights {
  at::Tensor embed_tokens_VH;
  std::vector<LayerWeights> layers;
  at::Tensor final_norm_H;
  at::Tensor lm_head_VH;  // the embedding itself if the head is tied
};

enum class WeightInit { kNormal, kOnes, kZeros };

// The part of a tensor that a process of a tensor parallel model holds (tensor_parallel.h).
enum class WeightCut {
  kWhole,
  kRows,           // equal slices
  kColumns,        // equal slices
  kKeyValueHeads,  // rows of this process's key-value heads
  kVocabulary,     // rows of this process's ids
  kFirstRank,      // rank 0 has all of it, the others 0: a bias that is added once
};

// One tensor of the list.
struct WeightSlot {
  std::string name;  // name in a checkpoint
  std::vector<int64_t> shape;
  WeightInit init;
  WeightCut cut;
  at::Tensor* tensor;  // points into the ModelWeights that were listed
  // The adapter of a Linear that can have one, next to its weight; null for all other tensors.
  LowRankAdapter* adapter = nullptr;
};

// Returns the part of `whole` that belongs in `slot`. `whole` is a tensor of the model of `config`,
// and `slot` was listed for a slice of that model. The result is a view if possible.
at::Tensor CutFor(const WeightSlot& slot, const at::Tensor& whole, const ModelConfig& config,
                  const TensorParallel& parallel);

// Resizes weights->layers and lists all tensors of the model in a fixed order: the embedding, the
// layers, the final norm, the head. A tied head has no slot. The pointers are valid while `weights`
// is neither moved nor destroyed.
std::vector<WeightSlot> ListWeights(const ModelConfig& config, const TensorNames& names,
                                    ModelWeights* weights);

// Returns RESOURCE_EXHAUSTED, with both sizes, if the weights are larger than the available memory
// of the device. For the CPU, that is the smaller of the machine's and the control group's.
absl::Status CheckWeightsFit(const ModelConfig& config, at::Device device, at::ScalarType dtype);
// Returns INVALID_ARGUMENT for a dtype that the optimizer cannot train.
absl::Status CheckTrains(at::ScalarType dtype);

// The functions of config/dtype.h, for LibTorch's types. REQUIRES: dtype is kFloat, kBFloat16 or
// kHalf.
std::optional<at::ScalarType> ScalarTypeOfSafetensors(const std::string& dtype);
std::string SafetensorsDtype(at::ScalarType dtype);
std::string ConfigDtype(at::ScalarType dtype);

}  // namespace taopd
