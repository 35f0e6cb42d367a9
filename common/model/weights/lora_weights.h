// The matrices of low-rank adapters: their initial values, and their file in PEFT's layout, in
// which A and B of the Linear NAME have the names
//
//   base_model.model.NAME.lora_A.weight   [rank, inputs]
//   base_model.model.NAME.lora_B.weight   [outputs, rank]
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/model/decoder.h"
#include "common/model/weights/weights.h"
#include "kernels/torch/gemm/lora/low_rank.h"

namespace taopd {

// Adapters by the names of their weights in a checkpoint, such as
// model.layers.0.self_attn.q_proj.weight.
struct LoraAdapters {
  LoraConfig config;
  std::map<std::string, LowRankAdapter> of_weight;
};

// Reads an adapter of the model whose weights are `slots`, as float32 on the CPU. Returns
// INVALID_ARGUMENT for a tensor that does not belong to the model or has another shape, for an A
// without a B, and for a file without adapters; and the errors of ReadLoraConfig. The
// target_modules become those of the file.
absl::StatusOr<LoraAdapters> ReadLoraAdapters(const std::string& adapter_dir,
                                              const std::vector<WeightSlot>& slots);

// Makes the adapters of `slots` that options.config.target_modules names, on their device, or those
// of options.dir. The random numbers depend only on options.seed and the names.
absl::StatusOr<LoraAdapters> MakeLoraAdapters(const LoraOptions& options,
                                              const std::vector<WeightSlot>& slots,
                                              at::Device device);

// Returns A and B of the slots' adapters in the order of the slots, with PEFT's names.
std::vector<NamedParameter> LoraParameters(const std::vector<WeightSlot>& slots);

// Writes an adapter's directory: adapter_model.safetensors, then adapter_config.json, each
// atomically. The parameters have PEFT's names and are written as float32.
absl::Status WriteLoraAdapter(const LoraConfig& config,
                              const std::vector<NamedParameter>& parameters,
                              const std::string& adapter_dir);

}  // namespace taopd
