// How the frequencies of rotary positions are scaled for contexts longer than those of the
// pre-training, as config.json says (rope_scaling or rope_parameters) and as transformers'
// modeling_rope_utils.py computes it. Knows nothing of LibTorch; rope.h computes.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/base/status.h"

namespace taopd {

enum class RopeType {
  kDefault,
  kLinear,   // every frequency divided by factor (Chen et al., arXiv:2306.15595)
  kDynamic,  // NTK-aware: scales only beyond max_position_embeddings, where no sequence here goes
  kYarn,     // Peng et al., arXiv:2309.00071
  kLlama3,   // Llama 3.1: low frequencies divided by factor, the middle ones interpolated
};

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;  // yarn, llama3: context of the pre-training
  // yarn
  std::optional<double> attention_factor;  // multiplies cosines and sines; nullopt: from factor
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 0.0;  // both 0: not given
  double mscale_all_dim = 0.0;
  bool truncate = true;
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
};

// Reads rope_theta, rope_scaling, rope_parameters and partial_rotary_factor; a rope_scaling that is
// not empty counts before rope_parameters, as in transformers. UNIMPLEMENTED, by name, for other
// types (longrope, mrope, ...), for a type's unknown members and for partial rotation.
absl::StatusOr<RopeConfig> ReadRopeConfig(const nlohmann::ordered_json& json,
                                          int64_t max_position_embeddings);

// Adds rope_theta and, for a scaled type, rope_scaling.
void WriteRopeConfig(const RopeConfig& rope, nlohmann::ordered_json* json);

}  // namespace taopd
