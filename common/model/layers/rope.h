// Rotary position embedding (Su et al., arXiv:2104.09864) in the half-split form of transformers:
// pair i of a head is (x[i], x[i + D/2]), and it is rotated by the angle position * theta^(-2i/D).
//
// Shapes: T tokens, D head_dim, P positions.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "common/model/config/rope_config.h"

namespace taopd {

// Cosines and sines of the positions of one batch, in the model's dtype. Both halves of a head are
// filled; the sine of the first half carries the minus sign of the rotation.
struct Rotation {
  at::Tensor cos_T1D;
  at::Tensor sin_T1D;
};

// Returns the frequencies of the pairs of a head, [D/2] float32 on the CPU, scaled as the
// configuration says. The operations are exactly those of transformers' modeling_rope_utils.py, so
// the results are equal bit for bit.
at::Tensor InverseFrequencies(const RopeConfig& config, int64_t head_dim);
// Returns the factor of cosines and sines: 1 except for YaRN.
double RopeAttentionFactor(const RopeConfig& config);

// Makes rotations from a table that grows with the largest requested position. Thread-safe.
class RopeTable {
 public:
  RopeTable(const RopeConfig& config, int64_t head_dim, at::Device device, at::ScalarType dtype)
      : device_(device),
        dtype_(dtype),
        inverse_frequencies_(InverseFrequencies(config, head_dim)),
        attention_factor_(RopeAttentionFactor(config)) {}
  // Returns the rotation of positions_T, which is int64, on the device and below num_positions.
  Rotation Gather(const at::Tensor& positions_T, int64_t num_positions);
  // Returns the addresses of the table, which change when it grows.
  std::vector<const void*> Addresses() const;

 private:
  std::pair<at::Tensor, at::Tensor> Tables(int64_t num_positions);

  const at::Device device_;
  const at::ScalarType dtype_;
  const at::Tensor inverse_frequencies_;  // [D/2]
  const double attention_factor_;
  mutable std::mutex mutex_;
  // Guarded by mutex_. Replaced as a whole and never written in place.
  at::Tensor cos_PD_;
  at::Tensor sin_PD_;
};

}  // namespace taopd
