#include "taopd/head/fused_head.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <sstream>

#include "kernels/cuda/gemm/matmul.h"
#include "kernels/cuda/head/fused_head_plan.h"
#include "kernels/cuda/head/head_problem.h"
#include "kernels/cuda/head/sparse_gradient.h"
#include "kernels/cuda/head/student_objective.h"
#include "kernels/cuda/head/student_sweep.h"
#include "kernels/cuda/head/vocabulary_sort.h"
#include "kernels/cuda/launch.h"
#include "taopd/objective/check_objective.h"

namespace taopd {
namespace cuda {
namespace {

// The work of one chunk on the stream. Its functions return the first problem.
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
  // Computes the logits, loss and metrics of rows [begin, begin + num); their E and entries are the
  // chunk's rows from `place` on.
  std::string Forward(int64_t begin, int64_t place, int64_t num) {
    const int64_t stride = LogitsStride(p_.vocab_size);
    std::string problem = Matmul(p_.dtype, num, p_.vocab_size, p_.hidden_size,
                                 {Hidden(begin), p_.hidden_stride, false}, LmHead(true), 0,
                                 b_.logits, stride, b_.matmul_scratch, context_);
    if (!problem.empty()) return problem;
    Element* e = mode_.dense ? static_cast<Element*>(b_.e) + place * stride : nullptr;
    SweepArguments sweep;
    sweep.logits = b_.logits;
    sweep.stride = stride;
    sweep.vocab_size = p_.vocab_size;
    sweep.scale = static_cast<float>(1 / p_.temperature);
    sweep.targets = RowsFrom(p_.targets, begin);
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
    objective.vocab_size = p_.vocab_size;
    objective.scale = sweep.scale;
    objective.targets = sweep.targets;
    objective.taken = b_.taken;
    objective.sampled_logits = b_.sampled_logits;
    objective.sizes = b_.sizes;
    objective.sums = b_.sums;
    objective.in_top_k = b_.in_top_k;
    objective.work = b_.objective_work;
    objective.loss = r_.loss_N + begin;
    objective.metrics = r_.metrics_NM + begin * kNumHeadMetrics;
    objective.dense = mode_.dense;
    if (mode_.gradient) {
      objective.row_scale = b_.row_scale + place;
      objective.entry_ids = b_.entry_ids + place * (p_.targets.k + 1);
      objective.entry_values = b_.entry_values + place * (p_.targets.k + 1);
    }
    problem = Launch("student objective", StudentObjective, CeilDiv(num, kObjectiveThreads),
                     kObjectiveThreads, context_.stream, objective);
    if (!problem.empty() || !mode_.dense) return problem;
    const int64_t num_entries = num * (p_.targets.k + 1);
    return Launch("entries of E", WriteEntries<Element>, CeilDiv(num_entries, 256), 256,
                  context_.stream, objective.entry_ids, objective.entry_values, num_entries,
                  p_.targets.k + 1, p_.vocab_size, e, stride);
  }

  std::string DenseGradient(int64_t begin, int64_t num_rows) {
    const int64_t stride = LogitsStride(p_.vocab_size);
    const int64_t hidden_size = p_.hidden_size;
    std::string problem;
    if (r_.d_hidden_NH != nullptr) {
      problem = Matmul(p_.dtype, num_rows, hidden_size, p_.vocab_size, {b_.e, stride, false},
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
    return Matmul(p_.dtype, p_.vocab_size, hidden_size, num_rows, {b_.e, stride, true},
                  {scaled, hidden_size, false}, 1, r_.d_lm_head_VH, hidden_size, b_.matmul_scratch,
                  context_);
  }

  std::string SparseGradient(int64_t begin, int64_t num_rows) {
    const int32_t per_row = p_.targets.k + 1;
    const int64_t num_entries = num_rows * per_row;
    std::string problem;
    if (r_.d_hidden_NH != nullptr) {
      problem = Launch("sparse d hidden", SparseDHidden<Element>, num_rows, kSparseThreads,
                       context_.stream, b_.entry_ids, b_.entry_values, per_row,
                       static_cast<const Element*>(p_.lm_head_VH), p_.lm_head_stride, p_.vocab_size,
                       p_.hidden_size, DHidden(begin));
      if (!problem.empty()) return problem;
    }
    if (r_.d_lm_head_VH == nullptr) return "";
    problem = Launch("sort keys", MakeSortKeys, CeilDiv(num_entries, 256), 256, context_.stream,
                     b_.entry_ids, num_entries, p_.vocab_size, b_.keys, b_.entries);
    if (!problem.empty()) return problem;
    problem = SortByVocabulary(b_.keys, b_.entries, num_entries, b_.sorted_keys, b_.sorted_entries,
                               b_.sort_scratch, b_.sort_scratch_bytes, context_.stream);
    if (!problem.empty()) return problem;
    return Launch("sparse d lm_head", SparseDLmHead<Element>, num_entries, kSparseThreads,
                  context_.stream, b_.sorted_keys, b_.sorted_entries, b_.entry_values, num_entries,
                  per_row, Hidden(begin), p_.hidden_stride, p_.vocab_size, p_.hidden_size,
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
  if (!wrong_objective.empty()) return wrong_objective;
  if (std::string wrong_sizes = WrongSizes(p); !wrong_sizes.empty()) return wrong_sizes;
  if (p.targets.k < 0 || p.targets.k > p.vocab_size) {
    problem << "k is " << p.targets.k << ", must be in [0, " << p.vocab_size << "]";
  } else if (p.num_rows > 0 && (needs & kNeedsSupport) && p.targets.k == 0) {
    problem << "k is 0; objective " << NameOf(p.objective) << " needs a support";
  } else if (p.top_k_metrics && p.targets.k > kMaxTopKMetrics && !(needs & kNeedsFullVocabulary)) {
    problem << "k is " << p.targets.k << "; top_k_metrics takes at most " << kMaxTopKMetrics;
  } else if (p.num_rows > 0 &&
             (p.hidden_NH == nullptr || p.lm_head_VH == nullptr ||
              p.targets.sampled_ids_N == nullptr || p.targets.row_weights_N == nullptr ||
              r.loss_N == nullptr || r.metrics_NM == nullptr || r.errors == nullptr)) {
    problem << "hidden, lm_head, sampled_ids, row_weights, loss, metrics and errors are needed";
  } else if (p.num_rows > 0 && p.targets.k > 0 &&
             (p.targets.support_ids_Nk == nullptr || p.targets.teacher_log_probs_Nk == nullptr)) {
    problem << "support_ids or teacher_log_probs is missing for k = " << p.targets.k;
  } else if (p.num_rows > 0 && (needs & kNeedsTeacherSampled) &&
             p.targets.teacher_sampled_log_probs_N == nullptr) {
    problem << "teacher_sampled_log_probs is missing; objective " << NameOf(p.objective)
            << " needs it";
  } else if (p.num_rows > 0 && (needs & kNeedsTeacherEntropy) &&
             p.targets.teacher_entropy_N == nullptr) {
    problem << "teacher_entropy is missing; objective " << NameOf(p.objective) << " needs it";
  } else if (p.num_rows > 0 && (needs & kNeedsAdvantage) && p.targets.advantages_N == nullptr) {
    problem << "advantages are missing; objective " << NameOf(p.objective) << " needs them";
  }
  return problem.str();
}

}  // namespace
}  // namespace cuda

std::string FusedHead(const FusedHeadProblem& problem, const FusedHeadResult& result,
                      const DeviceContext& context) {
  using namespace cuda;  // NOLINT: for the names of the layout
  std::string wrong = WrongArguments(problem, result);
  if (!wrong.empty() || problem.num_rows == 0) return wrong;
  const FusedHeadPlan plan = PlanFusedHead(problem, context.workspace_bytes);
  if (plan.chunk_rows == 0 || context.workspace == nullptr) {
    return WorkspaceTooSmall(context.workspace_bytes, plan.bytes);
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
