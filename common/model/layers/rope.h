// Rotary position embedding (Su et al., arXiv:2104.09864), the half-split form of transformers:
// pair i of a head is (x[i], x[i + D/2]), rotated by position * theta^(-2i/D).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "common/model/config/rope_config.h"

namespace taopd {

// Cosines and sines of the positions of one batch, [T, 1, D] in the model's dtype. Both halves of a
// head are filled; the sine of the first half carries the minus sign of the rotation.
struct Rotation {
  at::Tensor cos_T1D;
  at::Tensor sin_T1D;
};

// Frequencies of the pairs of a head, [D/2] float32 on the CPU, scaled as the configuration says;
// operation by operation as transformers' modeling_rope_utils.py, so that the bits are its bits.
at::Tensor InverseFrequencies(const RopeConfig& config, int64_t head_dim);
// What cosines and sines are multiplied by: 1 except for YaRN.
double RopeAttentionFactor(const RopeConfig& config);

// Makes rotations from a table that grows with the largest position asked for. Any thread.
class RopeTable {
 public:
  RopeTable(const RopeConfig& config, int64_t head_dim, at::Device device, at::ScalarType dtype);
  // positions_T int64 on the device, all below num_positions.
  Rotation Gather(const at::Tensor& positions_T, int64_t num_positions);

 private:
  std::pair<at::Tensor, at::Tensor> Tables(int64_t num_positions);

  const at::Device device_;
  const at::ScalarType dtype_;
  const at::Tensor inverse_frequencies_;  // [D/2]
  const double attention_factor_;
  std::mutex mutex_;
  at::Tensor cos_PD_;  // guarded by mutex_; replaced, never written
  at::Tensor sin_PD_;
};

}  // namespace taopd
