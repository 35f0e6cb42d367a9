#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "kernels/cuda/gemm/matmul.h"
#include "kernels/cuda/head/sparse_gradient.h"
#include "kernels/cuda/head/student_objective.h"
#include "kernels/cuda/head/student_sweep.h"
#include "kernels/cuda/head/vocabulary_sort.h"
#include "kernels/cuda/launch.h"
#include "taopd/head/fused_head.h"
#include "taopd/objective/check_objective.h"

namespace taopd {
namespace cuda {
namespace {

// What is computed beside loss and metrics.
struct Mode {
  bool gradient = false;
  bool dense = false;     // E and two products; otherwise k + 1 entries per row
  bool in_place = false;  // E replaces the logits: one dtype
};

// Every pointer into the workspace.
struct Buffers {
  float* logits = nullptr;
  void* e = nullptr;
  void* matmul_scratch = nullptr;
  // Per row of the logits.
  float* taken = nullptr;
  float* sampled_logits = nullptr;
  int32_t* sizes = nullptr;
  SweepSums* sums = nullptr;
  uint8_t* in_top_k = nullptr;
  double* objective_scratch = nullptr;
  // Per row of the chunk.
  float* row_scale = nullptr;
  int32_t* entry_ids = nullptr;
  float* entry_values = nullptr;
  float* d_hidden = nullptr;      // float32, before the row scale
  void* scaled_hidden = nullptr;  // hidden's dtype
  uint32_t* keys = nullptr;
  uint32_t* sorted_keys = nullptr;
  int32_t* entries = nullptr;
  int32_t* sorted_entries = nullptr;
  void* sort_scratch = nullptr;
  int64_t sort_scratch_bytes = 0;
  int64_t bytes = 0;
};

int64_t LogitsStride(const FusedHeadProblem& problem) {
  return RoundUp(problem.vocabulary_size, 64);
}

// The gradient's mode does not depend on which of the two gradients is asked for, so that a plan
// fits every call on the same problem.
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
  const int64_t k = problem.k;
  const int64_t element = SizeOf(problem.dtype);
  add_bytes(b.matmul_scratch, kMatmulScratchBytes);
  add(b.logits, logits_rows * LogitsStride(problem));
  add(b.taken, logits_rows * k);
  add(b.sampled_logits, logits_rows);
  add(b.sizes, logits_rows);
  add(b.sums, logits_rows);
  if (problem.top_k_metrics) add(b.in_top_k, logits_rows * k);
  add(b.objective_scratch, logits_rows * k * 4);
  if (mode.gradient) {
    add(b.row_scale, chunk_rows);
    add(b.entry_ids, chunk_rows * (k + 1));
    add(b.entry_values, chunk_rows * (k + 1));
  }
  if (mode.dense) {
    if (mode.in_place) {
      b.e = b.logits;
    } else {
      add_bytes(b.e, chunk_rows * LogitsStride(problem) * element);
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

// One chunk's work on the stream; answers with the first problem.
template <typename Element>
class Chunk {
 public:
  Chunk(const FusedHeadProblem& problem, const FusedHeadResult& result,
        const DeviceContext& context, const Mode& mode, const Buffers& buffers)
      : p_(problem), r_(result), context_(context), mode_(mode), b_(buffers) {}

  std::string Run(int64_t begin, int64_t num_rows, int64_t logits_rows) {
    std::string problem;
    for (int64_t row = 0; row < num_rows && problem.empty(); row += logits_rows) {
      problem = Forward(begin + row, row, std::min(logits_rows, num_rows - row));
    }
    if (!problem.empty() || !mode_.gradient) return problem;
    return mode_.dense ? DenseGradient(begin, num_rows) : SparseGradient(begin, num_rows);
  }

 private:
  const Element* Hidden(int64_t row) const {
    return static_cast<const Element*>(p_.hidden_NH) + row * p_.hidden_stride;
  }
  Operand LmHead(bool transposed) const { return {p_.lm_head_VH, p_.lm_head_stride, transposed}; }
  template <typename T>
  static const T* RowsFrom(const T* rows, int64_t row, int64_t columns = 1) {
    return rows == nullptr ? nullptr : rows + row * columns;
  }

  // Logits, loss and metrics of rows [begin, begin + num); their E and entries are rows `place` and
  // following of the chunk.
  std::string Forward(int64_t begin, int64_t place, int64_t num) {
    const int64_t stride = LogitsStride(p_);
    std::string problem = Matmul(p_.dtype, num, p_.vocabulary_size, p_.hidden_size,
                                 {Hidden(begin), p_.hidden_stride, false}, LmHead(true), 0,
                                 b_.logits, stride, b_.matmul_scratch, context_);
    if (!problem.empty()) return problem;
    Element* e = mode_.dense ? static_cast<Element*>(b_.e) + place * stride : nullptr;
    SweepArguments sweep;
    sweep.logits = b_.logits;
    sweep.stride = stride;
    sweep.vocabulary_size = p_.vocabulary_size;
    sweep.scale = static_cast<float>(1 / p_.temperature);
    sweep.support_ids = RowsFrom(p_.support_ids_Nk, begin, p_.k);
    sweep.sampled_ids = p_.sampled_ids_N + begin;
    sweep.k = p_.k;
    sweep.needs = NeedsOf(p_.objective);
    sweep.e = e;
    sweep.taken = b_.taken;
    sweep.sampled_logits = b_.sampled_logits;
    sweep.sizes = b_.sizes;
    sweep.sums = b_.sums;
    sweep.in_top_k = b_.in_top_k;
    sweep.errors = r_.errors;
    const auto kernel =
        p_.top_k_metrics
            ? (mode_.dense ? StudentSweep<Element, true, true> : StudentSweep<Element, false, true>)
            : (mode_.dense ? StudentSweep<Element, true, false>
                           : StudentSweep<Element, false, false>);
    problem = Launch("student sweep", kernel, num, kSweepThreads, context_.stream, sweep);
    if (!problem.empty()) return problem;

    ObjectiveArguments objective;
    objective.objective = p_.objective;
    objective.num_rows = num;
    objective.vocabulary_size = p_.vocabulary_size;
    objective.scale = sweep.scale;
    objective.k = p_.k;
    objective.support_ids = sweep.support_ids;
    objective.teacher_log_probs = RowsFrom(p_.teacher_log_probs_Nk, begin, p_.k);
    objective.teacher_log_tail = RowsFrom(p_.teacher_log_tail_N, begin);
    objective.sampled_ids = sweep.sampled_ids;
    objective.teacher_sampled_log_probs = RowsFrom(p_.teacher_sampled_log_probs_N, begin);
    objective.teacher_entropy = RowsFrom(p_.teacher_entropy_N, begin);
    objective.behavior_log_probs = RowsFrom(p_.behavior_log_probs_N, begin);
    objective.row_weights = p_.row_weights_N + begin;
    objective.taken = b_.taken;
    objective.sampled_logits = b_.sampled_logits;
    objective.sizes = b_.sizes;
    objective.sums = b_.sums;
    objective.in_top_k = b_.in_top_k;
    objective.scratch = b_.objective_scratch;
    objective.loss = r_.loss_N + begin;
    objective.metrics = r_.metrics_NM + begin * kNumHeadMetrics;
    objective.dense = mode_.dense;
    if (mode_.gradient) {
      objective.row_scale = b_.row_scale + place;
      objective.entry_ids = b_.entry_ids + place * (p_.k + 1);
      objective.entry_values = b_.entry_values + place * (p_.k + 1);
    }
    problem = Launch("student objective", StudentObjective, CeilDiv(num, kObjectiveThreads),
                     kObjectiveThreads, context_.stream, objective);
    if (!problem.empty() || !mode_.dense) return problem;
    const int64_t num_entries = num * (p_.k + 1);
    return Launch("entries of E", WriteEntries<Element>, CeilDiv(num_entries, 256), 256,
                  context_.stream, objective.entry_ids, objective.entry_values, num_entries,
                  p_.k + 1, p_.vocabulary_size, e, stride);
  }

  std::string DenseGradient(int64_t begin, int64_t num_rows) {
    const int64_t stride = LogitsStride(p_);
    const int64_t hidden_size = p_.hidden_size;
    std::string problem;
    if (r_.d_hidden_NH != nullptr) {
      problem = Matmul(p_.dtype, num_rows, hidden_size, p_.vocabulary_size, {b_.e, stride, false},
                       LmHead(false), 0, b_.d_hidden, hidden_size, b_.matmul_scratch, context_);
      if (!problem.empty()) return problem;
      problem =
          Launch("scale d hidden", ScaleRows<float, Element>, num_rows, 256, context_.stream,
                 b_.d_hidden, hidden_size, b_.row_scale, hidden_size, DHidden(begin), hidden_size);
      if (!problem.empty()) return problem;
    }
    if (r_.d_lm_head_VH == nullptr) return "";
    Element* scaled = static_cast<Element*>(b_.scaled_hidden);
    problem =
        Launch("scale hidden", ScaleRows<Element, Element>, num_rows, 256, context_.stream,
               Hidden(begin), p_.hidden_stride, b_.row_scale, hidden_size, scaled, hidden_size);
    if (!problem.empty()) return problem;
    return Matmul(p_.dtype, p_.vocabulary_size, hidden_size, num_rows, {b_.e, stride, true},
                  {scaled, hidden_size, false}, 1, r_.d_lm_head_VH, hidden_size, b_.matmul_scratch,
                  context_);
  }

  std::string SparseGradient(int64_t begin, int64_t num_rows) {
    const int32_t per_row = p_.k + 1;
    const int64_t num_entries = num_rows * per_row;
    std::string problem;
    if (r_.d_hidden_NH != nullptr) {
      problem = Launch("sparse d hidden", SparseDHidden<Element>, num_rows, kSparseThreads,
                       context_.stream, b_.entry_ids, b_.entry_values, per_row,
                       static_cast<const Element*>(p_.lm_head_VH), p_.lm_head_stride,
                       p_.vocabulary_size, p_.hidden_size, DHidden(begin));
      if (!problem.empty()) return problem;
    }
    if (r_.d_lm_head_VH == nullptr) return "";
    problem = Launch("sort keys", MakeSortKeys, CeilDiv(num_entries, 256), 256, context_.stream,
                     b_.entry_ids, num_entries, p_.vocabulary_size, b_.keys, b_.entries);
    if (!problem.empty()) return problem;
    problem = SortByVocabulary(b_.keys, b_.entries, num_entries, b_.sorted_keys, b_.sorted_entries,
                               b_.sort_scratch, b_.sort_scratch_bytes, context_.stream);
    if (!problem.empty()) return problem;
    return Launch("sparse d lm_head", SparseDLmHead<Element>, num_entries, kSparseThreads,
                  context_.stream, b_.sorted_keys, b_.sorted_entries, b_.entry_values, num_entries,
                  per_row, Hidden(begin), p_.hidden_stride, p_.vocabulary_size, p_.hidden_size,
                  r_.d_lm_head_VH);
  }

  Element* DHidden(int64_t row) const {
    return static_cast<Element*>(r_.d_hidden_NH) + row * p_.hidden_size;
  }

  const FusedHeadProblem& p_;
  const FusedHeadResult& r_;
  const DeviceContext& context_;
  const Mode mode_;
  const Buffers b_;
};

std::string WrongArguments(const FusedHeadProblem& p, const FusedHeadResult& r) {
  std::ostringstream problem;
  const std::string wrong_objective = taopd::ProblemOf(p.objective);
  const uint32_t needs = NeedsOf(p.objective);
  if (!wrong_objective.empty()) {
    problem << wrong_objective;
  } else if (p.num_rows < 0 || p.hidden_size < 1) {
    problem << "hidden has shape [" << p.num_rows << ", " << p.hidden_size << "]";
  } else if (p.vocabulary_size < 1 || p.vocabulary_size > std::numeric_limits<int32_t>::max()) {
    problem << "vocabulary_size is " << p.vocabulary_size << ", must be in [1, 2^31)";
  } else if (p.hidden_stride < p.hidden_size || p.lm_head_stride < p.hidden_size) {
    problem << "strides are " << p.hidden_stride << " and " << p.lm_head_stride
            << ", must be at least hidden_size " << p.hidden_size;
  } else if (!(p.temperature > 0) || !std::isfinite(p.temperature)) {
    problem << "temperature is " << p.temperature << ", must be positive";
  } else if (p.k < 0 || p.k > p.vocabulary_size) {
    problem << "k is " << p.k << ", must be in [0, " << p.vocabulary_size << "]";
  } else if (p.num_rows > 0 && (needs & kNeedsSupport) && p.k == 0) {
    problem << "k is 0; objective " << NameOf(p.objective) << " needs a support";
  } else if (p.top_k_metrics && p.k > kMaxTopKMetrics && !(needs & kNeedsFullVocabulary)) {
    problem << "k is " << p.k << "; top_k_metrics takes at most " << kMaxTopKMetrics;
  } else if (p.num_rows > 0 &&
             (p.hidden_NH == nullptr || p.lm_head_VH == nullptr || p.sampled_ids_N == nullptr ||
              p.row_weights_N == nullptr || r.loss_N == nullptr || r.metrics_NM == nullptr ||
              r.errors == nullptr)) {
    problem << "hidden, lm_head, sampled_ids, row_weights, loss, metrics and errors are needed";
  } else if (p.num_rows > 0 && p.k > 0 &&
             (p.support_ids_Nk == nullptr || p.teacher_log_probs_Nk == nullptr)) {
    problem << "support_ids or teacher_log_probs is missing for k = " << p.k;
  } else if (p.num_rows > 0 && (needs & kNeedsTeacherSampled) &&
             p.teacher_sampled_log_probs_N == nullptr) {
    problem << "teacher_sampled_log_probs is missing; objective " << NameOf(p.objective)
            << " needs it";
  } else if (p.num_rows > 0 && (needs & kNeedsTeacherEntropy) && p.teacher_entropy_N == nullptr) {
    problem << "teacher_entropy is missing; objective " << NameOf(p.objective) << " needs it";
  }
  return problem.str();
}

// The most rows in [low, high] for which fits(rows), which is monotone; 0 when none.
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
  using namespace cuda;  // NOLINT: the layout's names
  // Below that many rows of logits, reading lm_head costs as much as the product.
  constexpr int64_t kLogitsRows = 1024;
  // One thread each; more entries than this do not fit the sort's index.
  const int64_t most_rows = std::numeric_limits<int32_t>::max() / (int64_t{problem.k} + 1);
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
    // Fewer logits at a time leave more room for E, until one chunk is a few of them.
    const bool better = plan.chunk_rows == 0 || chunk_rows > plan.chunk_rows;
    if (better) plan = {chunk_rows, in_chunk, bytes(chunk_rows, in_chunk)};
    if (mode.in_place || chunk_rows == num_rows || chunk_rows >= 4 * logits_rows) break;
  }
  if (plan.chunk_rows == 0) return {0, 0, bytes(1, 1)};
  // Chunks of equal size, in whole runs of logits rows.
  const int64_t num_chunks = CeilDiv(num_rows, plan.chunk_rows);
  int64_t even = CeilDiv(num_rows, num_chunks);
  if (!mode.in_place) even = RoundUp(even, plan.logits_rows);
  plan.chunk_rows = std::min(plan.chunk_rows, even);
  if (mode.in_place) plan.logits_rows = plan.chunk_rows;
  plan.bytes = bytes(plan.chunk_rows, plan.logits_rows);
  return plan;
}

std::string FusedHead(const FusedHeadProblem& problem, const FusedHeadResult& result,
                      const DeviceContext& context) {
  using namespace cuda;  // NOLINT: the layout's names
  std::string wrong = WrongArguments(problem, result);
  if (!wrong.empty() || problem.num_rows == 0) return wrong;
  const FusedHeadPlan plan = PlanFusedHead(problem, context.workspace_bytes);
  if (plan.chunk_rows == 0 || context.workspace == nullptr) {
    return "the workspace has " + std::to_string(context.workspace_bytes) +
           " bytes, one row takes " + std::to_string(plan.bytes);
  }
  Mode mode = ModeOf(problem);
  const Buffers buffers =
      LayOut(problem, mode, plan.chunk_rows, plan.logits_rows, context.workspace);
  if (result.d_hidden_NH == nullptr && result.d_lm_head_VH == nullptr) mode = Mode();
  for (int64_t begin = 0; begin < problem.num_rows; begin += plan.chunk_rows) {
    const int64_t num_rows = std::min(plan.chunk_rows, problem.num_rows - begin);
    const auto run = [&](auto element) {
      return Chunk<decltype(element)>(problem, result, context, mode, buffers)
          .Run(begin, num_rows, plan.logits_rows);
    };
    wrong = problem.dtype == DataType::kBFloat16 ? run(__nv_bfloat16()) : run(float());
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace taopd
