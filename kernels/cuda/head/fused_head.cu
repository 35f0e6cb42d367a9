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

// The work of one chunk on the stream. Its functions return the first error.
template <typename Element>
class HeadChunk {
 public:
  HeadChunk(const FusedHeadProblem& problem, const FusedHeadResult& result,
            const DeviceContext& context, const HeadMode& mode, const HeadBuffers& buffers)
      : problem_(problem), result_(result), context_(context), mode_(mode), buffers_(buffers) {}

  std::string Run(int64_t begin, int64_t num_rows, int64_t logits_rows) {
    std::string error;
    for (int64_t row = 0; row < num_rows && error.empty(); row += logits_rows) {
      error = Forward(begin + row, row, std::min(logits_rows, num_rows - row));
    }
    if (!error.empty() || !mode_.gradient) return error;
    return mode_.dense ? DenseGradient(begin, num_rows) : SparseGradient(begin, num_rows);
  }

 private:
  const Element* Hidden(int64_t row) const {
    return static_cast<const Element*>(problem_.hidden_NH) + row * problem_.hidden_stride;
  }
  Operand LmHead(bool transposed) const {
    return {problem_.lm_head_VH, problem_.lm_head_stride, transposed};
  }
  // Computes the logits, loss and metrics of rows [begin, begin + num); their E and entries are the
  // chunk's rows from `place` on.
  std::string Forward(int64_t begin, int64_t place, int64_t num) {
    const int64_t stride = LogitsStride(problem_.vocab_size);
    std::string error = Matmul(problem_.dtype, num, problem_.vocab_size, problem_.hidden_size,
                               {Hidden(begin), problem_.hidden_stride}, LmHead(true), /*beta=*/0,
                               buffers_.logits, stride, buffers_.matmul_scratch, context_);
    if (!error.empty()) return error;
    Element* e = mode_.dense ? static_cast<Element*>(buffers_.e) + place * stride : nullptr;
    StudentRows rows{buffers_};
    rows.vocab_size = problem_.vocab_size;
    rows.scale = static_cast<float>(1 / problem_.temperature);
    rows.targets = RowsFrom(problem_.targets, begin);
    SweepArguments sweep{rows};
    sweep.logits = buffers_.logits;
    sweep.stride = stride;
    sweep.traits = TraitsOf(problem_.objective);
    sweep.e = e;
    sweep.errors = result_.errors;
    const auto kernel =
        problem_.top_k_metrics
            ? (mode_.dense ? StudentSweep<Element, true, true> : StudentSweep<Element, false, true>)
            : (mode_.dense ? StudentSweep<Element, true, false>
                           : StudentSweep<Element, false, false>);
    error = Launch("student sweep", kernel, num, kSweepThreads, context_.stream, sweep);
    if (!error.empty()) return error;

    ObjectiveArguments objective{rows};
    objective.objective = problem_.objective;
    objective.num_rows = num;
    objective.work = buffers_.objective_work;
    objective.loss = result_.loss_N + begin;
    objective.metrics = result_.metrics_NM + begin * kNumHeadMetrics;
    objective.dense = mode_.dense;
    if (mode_.gradient) {
      objective.row_scale = buffers_.row_scale + place;
      objective.entry_ids = buffers_.entry_ids + place * (problem_.targets.k + 1);
      objective.entry_values = buffers_.entry_values + place * (problem_.targets.k + 1);
    }
    error = Launch("student objective", StudentObjective, CeilDiv(num, kObjectiveThreads),
                   kObjectiveThreads, context_.stream, objective);
    if (!error.empty() || !mode_.dense) return error;
    const int64_t num_entries = num * (problem_.targets.k + 1);
    return Launch("entries of E", WriteEntries<Element>, CeilDiv(num_entries, 256), 256,
                  context_.stream, objective.entry_ids, objective.entry_values, num_entries,
                  problem_.targets.k + 1, problem_.vocab_size, e, stride);
  }

  std::string DenseGradient(int64_t begin, int64_t num_rows) {
    const int64_t stride = LogitsStride(problem_.vocab_size);
    const int64_t hidden_size = problem_.hidden_size;
    std::string error;
    if (result_.d_hidden_NH != nullptr) {
      error = Matmul(problem_.dtype, num_rows, hidden_size, problem_.vocab_size,
                     {buffers_.e, stride}, LmHead(false), /*beta=*/0, buffers_.d_hidden,
                     hidden_size, buffers_.matmul_scratch, context_);
      if (!error.empty()) return error;
      error = Launch("scale d hidden", ScaleRows<float, Element>, num_rows, 256, context_.stream,
                     buffers_.d_hidden, hidden_size, buffers_.row_scale, hidden_size,
                     DHidden(begin), hidden_size);
      if (!error.empty()) return error;
    }
    if (result_.d_lm_head_VH == nullptr) return "";
    Element* scaled = static_cast<Element*>(buffers_.scaled_hidden);
    error = Launch("scale hidden", ScaleRows<Element, Element>, num_rows, 256, context_.stream,
                   Hidden(begin), problem_.hidden_stride, buffers_.row_scale, hidden_size, scaled,
                   hidden_size);
    if (!error.empty()) return error;
    return Matmul(problem_.dtype, problem_.vocab_size, hidden_size, num_rows,
                  {buffers_.e, stride, /*transposed=*/true}, {scaled, hidden_size}, /*beta=*/1,
                  result_.d_lm_head_VH, hidden_size, buffers_.matmul_scratch, context_);
  }

  std::string SparseGradient(int64_t begin, int64_t num_rows) {
    const int32_t per_row = problem_.targets.k + 1;
    const int64_t num_entries = num_rows * per_row;
    std::string error;
    if (result_.d_hidden_NH != nullptr) {
      error = Launch("sparse d hidden", SparseDHidden<Element>, num_rows, kSparseThreads,
                     context_.stream, buffers_.entry_ids, buffers_.entry_values, per_row,
                     static_cast<const Element*>(problem_.lm_head_VH), problem_.lm_head_stride,
                     problem_.vocab_size, problem_.hidden_size, DHidden(begin));
      if (!error.empty()) return error;
    }
    if (result_.d_lm_head_VH == nullptr) return "";
    error = Launch("sort keys", MakeSortKeys, CeilDiv(num_entries, 256), 256, context_.stream,
                   buffers_.entry_ids, num_entries, problem_.vocab_size, buffers_.keys,
                   buffers_.entries);
    if (!error.empty()) return error;
    error = SortByVocabulary(buffers_.keys, buffers_.entries, num_entries, buffers_.sorted_keys,
                             buffers_.sorted_entries, buffers_.sort_scratch,
                             buffers_.sort_scratch_bytes, context_.stream);
    if (!error.empty()) return error;
    return Launch("sparse d lm_head", SparseDLmHead<Element>, num_entries, kSparseThreads,
                  context_.stream, buffers_.sorted_keys, buffers_.sorted_entries,
                  buffers_.entry_values, num_entries, per_row, Hidden(begin),
                  problem_.hidden_stride, problem_.vocab_size, problem_.hidden_size,
                  result_.d_lm_head_VH);
  }

  Element* DHidden(int64_t row) const {
    return static_cast<Element*>(result_.d_hidden_NH) + row * problem_.hidden_size;
  }

  const FusedHeadProblem& problem_;
  const FusedHeadResult& result_;
  const DeviceContext& context_;
  const HeadMode mode_;
  const HeadBuffers buffers_;
};

std::string ArgumentError(const FusedHeadProblem& problem, const FusedHeadResult& result) {
  if (std::string error = taopd::ProblemOf(problem.objective); !error.empty()) return error;
  if (std::string error = SizesError(problem); !error.empty()) return error;
  const StudentTargets& targets = problem.targets;
  const uint32_t traits = TraitsOf(problem.objective);
  const bool has_rows = problem.num_rows > 0;
  std::ostringstream error;
  if (targets.k < 0 || targets.k > problem.vocab_size) {
    error << "k is " << targets.k << ", must be in [0, " << problem.vocab_size << "]";
  } else if (has_rows && (traits & kNeedsSupport) && targets.k == 0) {
    error << "k is 0; objective " << NameOf(problem.objective) << " needs a support";
  } else if (problem.top_k_metrics && targets.k > kMaxTopKMetrics &&
             !(traits & kNeedsFullVocabulary)) {
    error << "k is " << targets.k << "; top_k_metrics takes at most " << kMaxTopKMetrics;
  } else if (has_rows && (problem.hidden_NH == nullptr || problem.lm_head_VH == nullptr ||
                          targets.sampled_ids_N == nullptr || targets.row_weights_N == nullptr ||
                          result.loss_N == nullptr || result.metrics_NM == nullptr ||
                          result.errors == nullptr)) {
    error << "hidden, lm_head, sampled_ids, row_weights, loss, metrics and errors are needed";
  } else if (has_rows && targets.k > 0 &&
             (targets.support_ids_Nk == nullptr || targets.teacher_log_probs_Nk == nullptr)) {
    error << "support_ids or teacher_log_probs is missing for k = " << targets.k;
  } else if (has_rows && (traits & kNeedsTeacherSampled) &&
             targets.teacher_sampled_log_probs_N == nullptr) {
    error << "teacher_sampled_log_probs is missing; objective " << NameOf(problem.objective)
          << " needs it";
  } else if (has_rows && (traits & kNeedsTeacherEntropy) && targets.teacher_entropy_N == nullptr) {
    error << "teacher_entropy is missing; objective " << NameOf(problem.objective) << " needs it";
  } else if (has_rows && (traits & kNeedsAdvantage) && targets.advantages_N == nullptr) {
    error << "advantages are missing; objective " << NameOf(problem.objective) << " needs them";
  }
  return error.str();
}

}  // namespace
}  // namespace cuda

std::string FusedHead(const FusedHeadProblem& problem, const FusedHeadResult& result,
                      const DeviceContext& context) {
  using namespace cuda;  // for the names of the layout
  std::string error = ArgumentError(problem, result);
  if (!error.empty() || problem.num_rows == 0) return error;
  const FusedHeadPlan plan = PlanFusedHead(problem, context.workspace_bytes);
  if (plan.chunk_rows == 0 || context.workspace == nullptr) {
    return WorkspaceTooSmall(context.workspace_bytes, plan.bytes);
  }
  HeadMode mode = HeadModeOf(problem);
  const HeadBuffers buffers =
      LayOutHead(problem, mode, plan.chunk_rows, plan.logits_rows, context.workspace);
  if (result.d_hidden_NH == nullptr && result.d_lm_head_VH == nullptr) mode = HeadMode();
  for (int64_t begin = 0; begin < problem.num_rows; begin += plan.chunk_rows) {
    const int64_t num_rows = std::min(plan.chunk_rows, problem.num_rows - begin);
    const auto run = [&](auto element) {
      return HeadChunk<decltype(element)>(problem, result, context, mode, buffers)
          .Run(begin, num_rows, plan.logits_rows);
    };
    error = problem.dtype == DataType::kBFloat16 ? run(__nv_bfloat16()) : run(float());
    if (!error.empty()) return error;
  }
  return "";
}

}  // namespace taopd
