// The layout of the workspace of a call of taopd/head/fused_head.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/head/student_sweep_arguments.h"
#include "kernels/cuda/launch.h"
#include "taopd/head/fused_head.h"

namespace taopd::cuda {

// The results that are computed besides loss and metrics.
struct HeadMode {
  bool gradient = false;
  bool dense = false;     // E and two products; otherwise k + 1 entries per row
  bool in_place = false;  // E replaces the logits: they have one dtype
};

// Returns the mode for which a plan is made. It does not depend on which of the two gradients is
// requested, so that a plan fits every call on the same problem.
HeadMode HeadModeOf(const FusedHeadProblem& problem);

// Every pointer into the workspace. Those that the mode does not need are null.
struct HeadBuffers : SweepResults {
  float* logits = nullptr;
  void* e = nullptr;
  void* matmul_scratch = nullptr;
  double* objective_work = nullptr;  // with one row per row of the logits, like SweepResults
  // Arrays with one row per row of the chunk.
  float* row_scale = nullptr;
  int32_t* entry_ids = nullptr;
  float* entry_values = nullptr;
  float* d_hidden = nullptr;      // float32, before the row scale
  void* scaled_hidden = nullptr;  // in the dtype of hidden
  uint32_t* keys = nullptr;
  uint32_t* sorted_keys = nullptr;
  int32_t* entries = nullptr;
  int32_t* sorted_entries = nullptr;
  void* sort_scratch = nullptr;
  int64_t sort_scratch_bytes = 0;
  int64_t bytes = 0;
};

// Places all buffers one after the other from `workspace` on, for chunk_rows rows of E and
// logits_rows rows of logits. If `workspace` is null, only `bytes` is meaningful.
HeadBuffers LayOutHead(const FusedHeadProblem& problem, const HeadMode& mode, int64_t chunk_rows,
                       int64_t logits_rows, void* workspace);

}  // namespace taopd::cuda
