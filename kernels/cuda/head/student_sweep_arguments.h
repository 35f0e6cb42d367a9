// The inputs and outputs of pass 2 of taopd/head/fused_head.h.
#pragma once

#include <cstdint>

#include "taopd/head/fused_head.h"
#include "taopd/head/student_targets.h"

namespace taopd::cuda {

// The sums over a row's complement, the tokens outside of the support.
struct SweepSums {
  float reference = 0;  // r
  float sum = 0;        // sum of e = exp((z - r) * scale)
  float sum_x = 0;      // sum of e (z - r) * scale
};

// The results of pass 2 that pass 3 reads.
struct SweepResults {
  float* support_logits = nullptr;  // [rows, k]
  float* sampled_logits = nullptr;  // [rows]
  int32_t* sizes = nullptr;         // [rows], the number of ids before the padding
  SweepSums* sums = nullptr;        // [rows]
  uint8_t* in_top_k = nullptr;      // [rows, k]; null without the top-k metrics
};

// The arguments of both passes.
struct StudentRows : SweepResults {
  int64_t vocab_size = 0;
  float scale = 1;           // 1 / temperature
  StudentTargets targets{};  // of these rows
};

struct SweepArguments : StudentRows {
  // [rows, stride]. The logits of the support are overwritten by -inf.
  float* logits = nullptr;
  int64_t stride = 0;   // a multiple of 4
  uint32_t traits = 0;  // TraitsOf the objective
  // [rows, stride] of the kernel's Element; for float it may be the logits themselves.
  void* e = nullptr;
  int32_t* errors = nullptr;
};

inline constexpr int kSweepThreads = 512;
inline constexpr int kSweepVectors = 4;  // vectors of four elements per thread and tile
inline constexpr int64_t kSweepTile = int64_t{kSweepThreads} * kSweepVectors * 4;

}  // namespace taopd::cuda
