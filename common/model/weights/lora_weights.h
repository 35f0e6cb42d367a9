// The matrices of low-rank adapters and the weights of modules_to_save: their initial values, and
// their file in PEFT's layout. For A and B of the Linear NAME, and for the weight of a saved module
// NAME, the file has the tensors
//
//   base_model.model.NAME.lora_A.weight   [rank, inputs]
//   base_model.model.NAME.lora_B.weight   [outputs, rank]
//   base_model.model.NAME.weight          the shape of the base's weight
//
// A head that is tied to a saved embedding is stored as well, as PEFT stores it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/model/decoder.h"
#include "common/model/weights/weights.h"
#include "kernels/torch/gemm/lora/low_rank.h"

namespace taopd {

// Adapters by the names of their weights in a checkpoint, such as
// model.layers.0.self_attn.q_proj.weight.
struct LoraAdapters {
  LoraConfig config;
  std::map<std::string, LowRankAdapter> by_weight;
  // The weights of the file's modules_to_save, in its types, which replace those of the base.
  std::map<std::string, at::Tensor> saved;
};

// Returns whether the slot is the weight of a module of modules_to_save.
bool IsSavedSlot(const WeightSlot& slot, const LoraConfig& config);

// Reads an adapter of a model with the weights `slots`, on the CPU; A and B become float32. The
// target_modules become those of the file. Returns INVALID_ARGUMENT for a tensor that does not
// belong to the model or has another shape, for an A without a B, for a file without adapters, and
// for a name in modules_to_save that the model does not have. Returns UNIMPLEMENTED if the adapter
// unties a head that is tied. Also returns the errors of ReadLoraConfig.
absl::StatusOr<LoraAdapters> ReadLoraAdapters(const std::string& adapter_dir,
                                              const ModelConfig& model,
                                              const std::vector<WeightSlot>& slots);

// Makes adapters of the `slots` that options.config.target_modules names, or, if options.dir is
// set, reads them and the modules that it saves from there. A and B are on `device`. The random
// numbers depend only on options.seed and the names.
absl::StatusOr<LoraAdapters> MakeLoraAdapters(const LoraOptions& options, const ModelConfig& model,
                                              const std::vector<WeightSlot>& slots,
                                              at::Device device);

// Returns A and B of the slots' adapters, and the slots that `config` saves, in the order of the
// slots, with PEFT's names.
std::vector<NamedParameter> LoraParameters(const std::vector<WeightSlot>& slots,
                                           const LoraConfig& config);

// Returns the WeightsRevision of the base of a decoder that has adapters. If the decoder trains
// some of the base's weights, they are hashed from the files of base_model.
absl::StatusOr<std::string> BaseRevision(const Decoder& decoder);

// Returns the name of a head that is saved.
std::string SavedHeadName();

// Writes an adapter's directory: adapter_model.safetensors, then adapter_config.json, each
// atomically. The parameters have PEFT's names.
absl::Status WriteLoraAdapter(const LoraConfig& config,
                              const std::vector<NamedParameter>& parameters,
                              const std::string& adapter_dir);

}  // namespace taopd
