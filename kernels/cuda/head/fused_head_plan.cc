#include "kernels/cuda/head/fused_head_plan.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/cuda/gemm/matmul.h"
#include "kernels/cuda/head/head_problem.h"
#include "kernels/cuda/head/vocabulary_sort.h"
#include "taopd/head/student_row.h"

namespace taopd {
namespace cuda {

Mode ModeOf(const FusedHeadProblem& problem) {
  Mode mode;
  mode.gradient = true;
  mode.dense = HasDenseGradient(problem.objective);
  mode.in_place = mode.dense && problem.dtype == DataType::kFloat32;
  return mode;
}

Buffers LayOut(const FusedHeadProblem& problem, const Mode& mode, int64_t chunk_rows,
               int64_t logits_rows, void* workspace) {
  WorkspaceLayout layout;
  Buffers b;
  const auto add = [&](auto*& pointer, int64_t num) {
    using T = std::remove_pointer_t<std::remove_reference_t<decltype(pointer)>>;
    pointer = Place<T>(workspace, layout.Add(num * static_cast<int64_t>(sizeof(T))));
  };
  const auto add_bytes = [&](void*& pointer, int64_t bytes) {
    pointer = Place<char>(workspace, layout.Add(bytes));
  };
  const int64_t k = problem.targets.k;
  const int64_t element = SizeOf(problem.dtype);
  add_bytes(b.matmul_scratch, kMatmulScratchBytes);
  add(b.logits, logits_rows * LogitsStride(problem.vocabulary_size));
  add(b.taken, logits_rows * k);
  add(b.sampled_logits, logits_rows);
  add(b.sizes, logits_rows);
  add(b.sums, logits_rows);
  if (problem.top_k_metrics) add(b.in_top_k, logits_rows * k);
  add(b.objective_work, logits_rows * k * kStudentRowWork);
  if (mode.gradient) {
    add(b.row_scale, chunk_rows);
    add(b.entry_ids, chunk_rows * (k + 1));
    add(b.entry_values, chunk_rows * (k + 1));
  }
  if (mode.dense) {
    if (mode.in_place) {
      b.e = b.logits;
    } else {
      add_bytes(b.e, chunk_rows * LogitsStride(problem.vocabulary_size) * element);
    }
    add(b.d_hidden, chunk_rows * problem.hidden_size);
    add_bytes(b.scaled_hidden, chunk_rows * problem.hidden_size * element);
  } else if (mode.gradient) {
    const int64_t num_entries = chunk_rows * (k + 1);
    add(b.keys, num_entries);
    add(b.sorted_keys, num_entries);
    add(b.entries, num_entries);
    add(b.sorted_entries, num_entries);
    b.sort_scratch_bytes = SortScratchBytes(num_entries);
    add_bytes(b.sort_scratch, b.sort_scratch_bytes);
  }
  b.bytes = layout.size();
  return b;
}

namespace {

// Returns the largest number of rows in [low, high] with fits(rows), which is monotone, or 0 if
// there is none.
template <typename Fits>
int64_t MostRows(int64_t low, int64_t high, const Fits& fits) {
  if (low > high || !fits(low)) return 0;
  while (low < high) {
    const int64_t middle = high - (high - low) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace
}  // namespace cuda

FusedHeadPlan PlanFusedHead(const FusedHeadProblem& problem, int64_t workspace_bytes) {
  using namespace cuda;  // NOLINT: for the names of the layout
  // With fewer rows of logits than this, reading lm_head costs as much as the product.
  constexpr int64_t kLogitsRows = 1024;
  // There is one thread per entry, and the index of the sort allows no more entries than this.
  const int64_t most_rows = std::numeric_limits<int32_t>::max() / (int64_t{problem.targets.k} + 1);
  const int64_t num_rows = std::clamp<int64_t>(problem.num_rows, 1, most_rows);
  const Mode mode = ModeOf(problem);
  const auto bytes = [&](int64_t chunk_rows, int64_t logits_rows) {
    return LayOut(problem, mode, chunk_rows, logits_rows, nullptr).bytes;
  };
  FusedHeadPlan plan;
  for (int64_t logits_rows = std::min(kLogitsRows, num_rows); logits_rows >= 1; logits_rows /= 2) {
    const int64_t chunk_rows = MostRows(logits_rows, num_rows, [&](int64_t rows) {
      return bytes(rows, mode.in_place ? rows : logits_rows) <= workspace_bytes;
    });
    if (chunk_rows == 0) continue;
    const int64_t in_chunk = mode.in_place ? chunk_rows : logits_rows;
    // Fewer logits at a time leave more room for E, until one chunk is only a few times as large.
    const bool better = plan.chunk_rows == 0 || chunk_rows > plan.chunk_rows;
    if (better) plan = {chunk_rows, in_chunk, bytes(chunk_rows, in_chunk)};
    if (mode.in_place || chunk_rows == num_rows || chunk_rows >= 4 * logits_rows) break;
  }
  if (plan.chunk_rows == 0) return {0, 0, bytes(1, 1)};
  // Chunks have equal sizes, in whole runs of logits rows.
  const int64_t num_chunks = CeilDiv(num_rows, plan.chunk_rows);
  int64_t even = CeilDiv(num_rows, num_chunks);
  if (!mode.in_place) even = RoundUp(even, plan.logits_rows);
  plan.chunk_rows = std::min(plan.chunk_rows, even);
  if (mode.in_place) plan.logits_rows = plan.chunk_rows;
  plan.bytes = bytes(plan.chunk_rows, plan.logits_rows);
  return plan;
}

}  // namespace taopd
