// How many rows of logits are computed at a time, so that the logits of a whole batch never exist. The
// heads and sampling go by it, and so does the memory plan.
#pragma once

#include <algorithm>
#include <cstdint>

namespace taopd {

// How many rows of num_buffers float32 tensors [rows, V] together stay within workspace_bytes; at
// least 1.
inline int64_t LogitRowsThatFit(int64_t workspace_bytes, int64_t vocabulary_size,
                                int64_t num_buffers) {
  const int64_t row_bytes = vocabulary_size * num_buffers * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(1, workspace_bytes / row_bytes);
}

// On a CPU, logits that are read again at once had better still be in its caches: so many bytes are,
// on processors with a MiB of second-level cache a core and more. A product of fewer rows than these
// would read the matrix more often than it is worth.
inline constexpr int64_t kCachedLogitBytes = int64_t{4} << 20;
inline constexpr int64_t kLeastProductRows = 96;

// What the teacher's head has beside each other on a device other than a CPU: the composition by ATen
// (kernels/torch/head/scoring_rows_aten.h) holds copies.
inline constexpr int64_t kScoringBuffersOnDevice = 4;

// The rows of a chunk: on a CPU, where there is one buffer, or of num_buffers on another device. No
// number of a row depends on it on a CPU.
inline int64_t LogitChunkRows(bool on_cpu, int64_t workspace_bytes, int64_t vocabulary_size,
                              int64_t num_buffers) {
  if (!on_cpu) return LogitRowsThatFit(workspace_bytes, vocabulary_size, num_buffers);
  const int64_t cached = LogitRowsThatFit(kCachedLogitBytes, vocabulary_size, /*num_buffers=*/1);
  return std::min(LogitRowsThatFit(workspace_bytes, vocabulary_size, /*num_buffers=*/1),
                  std::max(kLeastProductRows, cached));
}

}  // namespace taopd
