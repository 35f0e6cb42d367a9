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

HeadMode HeadModeOf(const FusedHeadProblem& problem) {
  HeadMode mode;
  mode.gradient = true;
  mode.dense = HasDenseGradient(problem.objective);
  mode.in_place = mode.dense && problem.dtype == DataType::kFloat32;
  return mode;
}

HeadBuffers LayOutHead(const FusedHeadProblem& problem, const HeadMode& mode, int64_t chunk_rows,
                       int64_t logits_rows, void* workspace) {
  WorkspaceLayout layout;
  HeadBuffers b;
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
  add(b.logits, logits_rows * LogitsStride(problem.vocab_size));
  add(b.support_logits, logits_rows * k);
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
      add_bytes(b.e, chunk_rows * LogitsStride(problem.vocab_size) * element);
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

// Returns the bytes that a plan reads and writes per element of lm_head. Each run of logits rows
// reads lm_head; with a dense gradient, each chunk reads it again and reads and writes its float32
// gradient.
int64_t Traffic(const FusedHeadProblem& problem, const HeadMode& mode, int64_t num_runs,
                int64_t num_chunks) {
  const int64_t element = SizeOf(problem.dtype);
  return num_runs * element + (mode.dense ? num_chunks * (element + 8) : 0);
}

// Returns the next number of chunks to try: each of the first sixteen, then in steps of an eighth,
// and num_rows as the last one.
int64_t NextNumChunks(int64_t num_chunks, int64_t num_rows) {
  const int64_t next = num_chunks + std::max<int64_t>(1, num_chunks / 8);
  return num_chunks < num_rows ? std::min(next, num_rows) : next;
}

// Returns how many runs there are if every chunk begins with a new one.
int64_t NumRuns(int64_t num_rows, int64_t chunk_rows, int64_t logits_rows) {
  const int64_t whole = num_rows / chunk_rows, rest = num_rows % chunk_rows;
  return whole * CeilDiv(chunk_rows, logits_rows) + CeilDiv(rest, logits_rows);
}

}  // namespace
}  // namespace cuda

FusedHeadPlan PlanFusedHead(const FusedHeadProblem& problem, int64_t workspace_bytes) {
  using namespace cuda;  // for the names of the layout
  // With more rows of logits than this, reading lm_head takes little of the product's time.
  constexpr int64_t kMostLogitsRows = 1024;
  // Runs of logits have a multiple of this many rows where that adds no run.
  constexpr int64_t kProductTile = 64;
  // There is one thread per entry, and the index of the sort allows no more entries than this.
  const int64_t most_rows = std::numeric_limits<int32_t>::max() / (int64_t{problem.targets.k} + 1);
  const int64_t num_rows = std::max<int64_t>(problem.num_rows, 1);
  const HeadMode mode = HeadModeOf(problem);
  const auto bytes = [&](int64_t chunk_rows, int64_t logits_rows) {
    return LayOutHead(problem, mode, chunk_rows, mode.in_place ? chunk_rows : logits_rows, nullptr)
        .bytes;
  };
  const int64_t largest_chunk = MostRows(1, std::min(num_rows, most_rows), [&](int64_t rows) {
    return bytes(rows, 1) <= workspace_bytes;
  });
  if (largest_chunk == 0) return {0, 0, bytes(1, 1)};

  FusedHeadPlan plan;
  int64_t least_traffic = std::numeric_limits<int64_t>::max();
  // More chunks leave more memory to the runs of logits, so numbers of chunks are tried until the
  // chunks alone cost as much as the best plan. The numbers do not depend on the workspace, so that
  // plan.bytes gives the same plan again.
  for (int64_t num_chunks = 1; num_chunks <= num_rows;
       num_chunks = NextNumChunks(num_chunks, num_rows)) {
    if (CeilDiv(num_rows, num_chunks) > largest_chunk) continue;
    const int64_t fewest_runs =
        mode.in_place ? num_chunks : std::max(num_chunks, CeilDiv(num_rows, kMostLogitsRows));
    if (Traffic(problem, mode, fewest_runs, num_chunks) >= least_traffic) break;
    const int64_t chunk_rows = CeilDiv(num_rows, num_chunks);
    int64_t logits_rows = chunk_rows;
    if (!mode.in_place) {
      logits_rows = MostRows(1, std::min(kMostLogitsRows, chunk_rows), [&](int64_t rows) {
        return bytes(chunk_rows, rows) <= workspace_bytes;
      });
      const int64_t even = CeilDiv(chunk_rows, CeilDiv(chunk_rows, logits_rows));
      logits_rows = std::min(logits_rows, RoundUp(even, kProductTile));
    }
    const int64_t traffic = Traffic(problem, mode, NumRuns(num_rows, chunk_rows, logits_rows),
                                    CeilDiv(num_rows, chunk_rows));
    if (traffic >= least_traffic) continue;
    least_traffic = traffic;
    plan = {chunk_rows, logits_rows, bytes(chunk_rows, logits_rows)};
  }
  return plan;
}

}  // namespace taopd
