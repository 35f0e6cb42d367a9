// The tensors of a decoder, and the list that names them: loading, initialisation, export and the
// optimiser all walk that list.
//
// Shapes: H hidden, I intermediate, V vocabulary, Q = heads * head_dim, K = key-value heads *
// head_dim, D head_dim. Projections are stored [out, in].
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <vector>

#include "common/model/architectures/architecture.h"
#include "common/model/config/model_config.h"
#include "common/model/layers/moe.h"

namespace taopd {

struct Projection {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], or undefined
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
  MoeWeights moe;        // in place of the three projections above in a sparse layer
};

struct ModelWeights {
  at::Tensor embed_tokens_VH;
  std::vector<LayerWeights> layers;
  at::Tensor final_norm_H;
  at::Tensor lm_head_VH;  // the embedding itself when tied
};

enum class WeightInit { kNormal, kOnes, kZeros };

struct WeightSlot {
  std::string name;  // in a checkpoint
  std::vector<int64_t> shape;
  WeightInit init;
  at::Tensor* tensor;  // into the ModelWeights given
};

// Sizes weights->layers and lists all tensors of the model in a fixed order: the embedding, the
// layers, the final norm, the head. A tied head has no slot. Pointers are valid while `weights`
// lives where it is.
std::vector<WeightSlot> ListWeights(const ModelConfig& config, const TensorNames& names,
                                    ModelWeights* weights);

// RESOURCE_EXHAUSTED, with both sizes, where the weights are larger than what the device, or for
// the CPU the machine and the control group, has available.
absl::Status CheckWeightsFit(const ModelConfig& config, at::Device device, at::ScalarType dtype);
// INVALID_ARGUMENT for a type that no optimizer here trains.
absl::Status CheckTrains(at::ScalarType dtype);

// "F32", "BF16" or "F16" of safetensors; nullopt for types that no decoder computes in.
std::optional<at::ScalarType> ScalarTypeOfSafetensors(const std::string& dtype);
// REQUIRES: kFloat, kBFloat16, kHalf.
std::string SafetensorsDtype(at::ScalarType dtype);
// "float32", "bfloat16" or "float16", as config.json writes it.
std::string ConfigDtype(at::ScalarType dtype);

}  // namespace taopd
