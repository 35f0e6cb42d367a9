// The number of rows of logits that are computed at a time, so that the logits of a whole batch
// never exist. The heads, sampling and the memory plan share these functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace taopd {

// Returns how many rows of num_buffers float32 tensors [rows, V] together stay within
// workspace_bytes; at least 1.
inline int64_t LogitRowsThatFit(int64_t workspace_bytes, int64_t vocab_size, int64_t num_buffers) {
  const int64_t row_bytes = vocab_size * num_buffers * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(1, workspace_bytes / row_bytes);
}

// On a CPU, logits are read again immediately, so a chunk should fit in the cache. This many bytes
// do on processors with at least 1 MiB of second-level cache per core. A product of fewer than
// kMinProductRows rows would read the matrix too often for the work that it does.
inline constexpr int64_t kCachedLogitBytes = int64_t{4} << 20;
inline constexpr int64_t kMinProductRows = 96;

// The number of copies of the logits that the teacher's head holds at a time on devices other than
// a CPU, where it is composed of ATen operations (kernels/torch/composed/scoring_rows.h).
inline constexpr int64_t kScoringBuffersOnDevice = 4;

// Returns the number of rows of a chunk. A CPU holds one buffer of logits, other devices
// num_buffers. On a CPU, the results of a row do not depend on it.
inline int64_t LogitChunkRows(bool on_cpu, int64_t workspace_bytes, int64_t vocab_size,
                              int64_t num_buffers) {
  if (!on_cpu) return LogitRowsThatFit(workspace_bytes, vocab_size, num_buffers);
  const int64_t cached = LogitRowsThatFit(kCachedLogitBytes, vocab_size, /*num_buffers=*/1);
  return std::min(LogitRowsThatFit(workspace_bytes, vocab_size, /*num_buffers=*/1),
                  std::max(kMinProductRows, cached));
}

// The student's head on a GPU computes chunks of at least this many rows (or of all). For each
// element of a bfloat16 lm_head and its float32 gradient, a chunk moves 12 bytes and does 6 FLOP
// per row. An H200 does 180 FLOP in the time of a byte (computed), so with fewer than 360 rows the
// products wait for memory.
inline constexpr int64_t kMinStudentRows = 512;

// Returns the workspace with which the student's head on a GPU computes num_rows rows in one chunk.
// The gradient of float32 logits replaces them; with other types there is memory for both.
inline int64_t StudentHeadBytesOnGpu(int64_t num_rows, int64_t hidden_size, int64_t vocab_size,
                                     int64_t value_bytes) {
  constexpr int64_t kFloatBytes = sizeof(float);
  // The products' scratch memory, and arrays with only a few numbers per row.
  constexpr int64_t kOtherBytes = int64_t{40} << 20;
  const int64_t gradient_bytes = value_bytes == kFloatBytes ? 0 : value_bytes;
  return kOtherBytes + num_rows * (vocab_size * (kFloatBytes + gradient_bytes) +
                                   hidden_size * (kFloatBytes + value_bytes));
}

}  // namespace taopd
