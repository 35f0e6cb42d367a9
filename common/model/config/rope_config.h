// The scaling of the frequencies of rotary positions for contexts longer than those of
// pre-training. config.json gives it in rope_scaling or rope_parameters, with the meaning of
// transformers' modeling_rope_utils.py. layers/rope.h computes the frequencies. This header does
// not depend on LibTorch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/status.h"

namespace taopd {

enum class RopeType {
  kDefault,
  kLinear,   // divides every frequency by factor (Chen et al., arXiv:2306.15595)
  kDynamic,  // NTK-aware; scales only beyond max_position_embeddings, which no sequence exceeds
  kYarn,     // Peng et al., arXiv:2309.00071
  kLlama3,   // Llama 3.1: divides low frequencies by factor and interpolates the middle ones
};

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  // The context length of pre-training, for kYarn and kLlama3.
  int64_t original_max_position_embeddings = 0;

  // Only for kYarn. attention_factor multiplies cosines and sines; if nullopt, it is computed from
  // `factor` and, if neither of them is 0, mscale and mscale_all_dim.
  std::optional<double> attention_factor;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 0.0;
  double mscale_all_dim = 0.0;
  bool truncate = true;

  // Only for kLlama3.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
};

// Reads rope_theta, rope_scaling, rope_parameters and partial_rotary_factor. As in transformers, a
// rope_scaling that is not empty takes precedence over rope_parameters. Returns UNIMPLEMENTED with
// the name for other types (longrope, mrope, ...), for unknown members of a type and for partial
// rotation.
absl::StatusOr<RopeConfig> ReadRopeConfig(const nlohmann::ordered_json& json,
                                          int64_t max_position_embeddings);

// Adds rope_theta and, for a scaled type, rope_scaling.
void WriteRopeConfig(const RopeConfig& rope, nlohmann::ordered_json* json);

}  // namespace taopd
