#include "kernels/torch/head/cuda_heads.h"

#include <algorithm>
#include <utility>

#include "kernels/torch/data_type.h"
#include "kernels/torch/device_call.h"
#include "kernels/torch/tensor_data.h"
#include "taopd/head/fused_head.h"
#include "taopd/head/logit_chunk.h"
#include "taopd/head/row_support.h"

namespace taopd {
namespace {

// Returns a matrix whose rows have adjacent elements; other layouts are copied.
at::Tensor WithAdjacentColumns(const at::Tensor& matrix) {
  const bool usable = matrix.stride(1) == 1 && matrix.stride(0) >= matrix.size(1);
  return usable ? matrix : matrix.contiguous();
}

DataType TypeOf(const at::Tensor& tensor) {
  // float16 would be read as another type.
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kFloat,
              "hidden is ", tensor.scalar_type(), ", must be float32 or bfloat16 here");
  return DataTypeOf(tensor.scalar_type());
}

void SetInputs(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH, double temperature,
               HeadInputs* problem) {
  problem->temperature = temperature;
  problem->dtype = TypeOf(hidden_NH);
  problem->num_rows = hidden_NH.size(0);
  problem->hidden_size = hidden_NH.size(1);
  problem->vocab_size = lm_head_VH.size(0);
  problem->hidden_NH = hidden_NH.const_data_ptr();
  problem->hidden_stride = std::max(hidden_NH.stride(0), problem->hidden_size);
  problem->lm_head_VH = lm_head_VH.const_data_ptr();
  problem->lm_head_stride = std::max(lm_head_VH.stride(0), problem->hidden_size);
}

void CheckErrors(int32_t errors, int64_t vocab_size) {
  TORCH_CHECK(!(errors & kHeadSupportIdOutOfRange),
              "support_ids holds ids outside of the vocabulary [0, ", vocab_size, ")");
  TORCH_CHECK(!(errors & kHeadSampledIdOutOfRange),
              "sampled_ids holds ids outside of the vocabulary [0, ", vocab_size, ")");
  using cpu::RowStatus;
  constexpr std::pair<HeadError, RowStatus> kOfSupports[] = {
      {kHeadDuplicateSupportId, RowStatus::kDuplicateSupportId},
      {kHeadIdAfterPadding, RowStatus::kIdAfterPadding},
      {kHeadEmptySupport, RowStatus::kEmptySupport},
      {kHeadIncompleteSupport, RowStatus::kIncompleteSupport}};
  for (const auto& [error, status] : kOfSupports) {
    TORCH_CHECK(!(errors & error), cpu::Describe(status));
  }
}

// The outputs of scoring and the error word, on the device. They share one array, so that one copy
// brings them to the host; each copy waits for the device.
class DeviceScores {
 public:
  // Allocates as many numbers as `host` has. Each number has four bytes.
  DeviceScores(const ScoringOutput& host, at::Device device) : on_device_(host) {
    int64_t size = 1;
    for (at::Tensor* tensor : on_device_.Tensors()) {
      if (tensor->defined()) size += tensor->numel();
    }
    all_ = at::empty({size}, at::TensorOptions().dtype(at::kInt).device(device));
    all_.narrow(0, 0, 1).zero_();
    VisitParts(all_, [](at::Tensor* tensor, const at::Tensor& part) { *tensor = part; });
  }

  const ScoringOutput& on_device() const { return on_device_; }
  int32_t* errors() const { return all_.mutable_data_ptr<int32_t>(); }

  // Waits for the results, fills in *host and returns the error word.
  int32_t Fetch(ScoringOutput* host) {
    const at::Tensor fetched = all_.to(at::kCPU);
    const auto to = host->Tensors();
    size_t i = 0;
    VisitParts(fetched, [&](at::Tensor*, const at::Tensor& part) {
      while (!to[i]->defined()) ++i;
      to[i++]->copy_(part);
    });
    return fetched.const_data_ptr<int32_t>()[0];
  }

 private:
  // Calls visit(tensor, its part of `all`) for each tensor that is defined.
  template <typename Visit>
  void VisitParts(const at::Tensor& all, const Visit& visit) {
    int64_t first = 1;  // after the error word
    for (at::Tensor* tensor : on_device_.Tensors()) {
      if (!tensor->defined()) continue;
      const int64_t size = tensor->numel();
      visit(tensor, all.narrow(0, first, size).view(tensor->scalar_type()).view(tensor->sizes()));
      first += size;
    }
  }

  ScoringOutput on_device_;
  at::Tensor all_;
};

}  // namespace

bool StudentKernelTakes(const HeadOptions& options, int64_t k) {
  return !options.top_k_metrics || k <= kMaxTopKMetrics ||
         (TraitsOf(options.objective) & kNeedsFullVocabulary) != 0;
}

HeadOutput StudentHeadCuda(const at::Tensor& hidden, const at::Tensor& lm_head,
                           const HeadTargets& targets, const HeadOptions& options,
                           at::Tensor d_lm_head_VH, const DeviceKernels& kernels) {
  const DeviceCall call(KernelKind::kStudentHead, hidden);
  const at::Tensor hidden_NH = WithAdjacentColumns(hidden);
  const at::Tensor lm_head_VH = WithAdjacentColumns(lm_head);
  TORCH_CHECK(!d_lm_head_VH.defined() || d_lm_head_VH.is_contiguous(), "d_lm_head has strides ",
              d_lm_head_VH.strides(), ", must be contiguous");
  FusedHeadProblem problem;
  SetInputs(hidden_NH, lm_head_VH, options.temperature, &problem);
  problem.targets = PointersTo(targets);
  problem.objective = options.objective;
  problem.top_k_metrics = options.top_k_metrics;

  const at::TensorOptions floats = hidden_NH.options().dtype(at::kFloat);
  HeadOutput output;
  output.loss_N = at::empty({problem.num_rows}, floats);
  output.d_hidden_NH = at::empty(hidden_NH.sizes(), hidden_NH.options());
  const at::Tensor metrics_NM = at::empty({problem.num_rows, kNumHeadMetrics}, floats);
  const at::Tensor errors = at::zeros({1}, floats.dtype(at::kInt));
  FusedHeadResult result;
  result.loss_N = MutableDataOrNull<float>(output.loss_N);
  result.metrics_NM = MutableDataOrNull<float>(metrics_NM);
  result.d_hidden_NH = output.d_hidden_NH.mutable_data_ptr();
  result.d_lm_head_VH = MutableDataOrNull<float>(d_lm_head_VH);
  result.errors = errors.mutable_data_ptr<int32_t>();

  const int64_t least_bytes =
      StudentHeadBytesOnGpu(std::min(problem.num_rows, kMinStudentRows), problem.hidden_size,
                            problem.vocab_size, SizeOf(problem.dtype));
  const FusedHeadPlan plan = PlanFusedHead(problem, std::max(options.workspace_bytes, least_bytes));
  const at::Tensor workspace = at::empty({plan.bytes}, floats.dtype(at::kByte));
  CheckLaunch(kernels.fused_head(problem, result, call.ContextForProducts(workspace)));
  CheckErrors(errors.item<int32_t>(), problem.vocab_size);
  output.metrics_NM = metrics_NM.to(at::kCPU);
  return output;
}

void ScoreRowsOfHeadCuda(const at::Tensor& hidden, const at::Tensor& lm_head,
                         const at::Tensor& sampled_N, const at::Tensor& candidates_NM,
                         const ScoringOptions& options, ScoringOutput* output,
                         const DeviceKernels& kernels) {
  const DeviceCall call(KernelKind::kScoringHead, hidden);
  const at::Tensor hidden_NH = WithAdjacentColumns(hidden);
  const at::Tensor lm_head_VH = WithAdjacentColumns(lm_head);
  DeviceScores scores(*output, hidden.device());
  const ScoringOutput& device = scores.on_device();
  const auto inputs_on_device = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(hidden.device()) : tensor;
  };
  const at::Tensor sampled = inputs_on_device(sampled_N);
  const at::Tensor candidates = inputs_on_device(candidates_NM);

  FusedScoringProblem problem;
  SetInputs(hidden_NH, lm_head_VH, options.temperature, &problem);
  problem.top_k = options.top_k;
  problem.sampled_ids_N = DataOrNull<int32_t>(sampled);
  problem.candidate_ids_NM = DataOrNull<int32_t>(candidates);
  problem.num_candidates = candidates.defined() ? static_cast<int32_t>(candidates.size(1)) : 0;
  FusedScoringResult result;
  result.ids_Nk = MutableDataOrNull<int32_t>(device.ids_Nk);
  result.log_probs_Nk = MutableDataOrNull<float>(device.log_probs_Nk);
  result.log_tail_N = MutableDataOrNull<float>(device.log_tail_N);
  result.log_support_mass_N = MutableDataOrNull<float>(device.log_support_mass_N);
  result.log_sum_exp_N = MutableDataOrNull<float>(device.log_sum_exp_N);
  result.sampled_log_probs_N = MutableDataOrNull<float>(device.sampled_log_probs_N);
  result.sampled_ranks_N = MutableDataOrNull<int32_t>(device.sampled_ranks_N);
  result.entropy_N = MutableDataOrNull<float>(device.entropy_N);
  result.candidate_log_probs_NM = MutableDataOrNull<float>(device.candidate_log_probs_NM);
  result.candidate_log_tail_N = MutableDataOrNull<float>(device.candidate_log_tail_N);
  result.errors = scores.errors();

  if (problem.num_rows == 0) return;
  const int64_t row_bytes = ScoringBytesPerRow(problem);
  const int64_t rows = std::clamp<int64_t>(
      (options.workspace_bytes - ScoringFixedBytes()) / row_bytes, 1, problem.num_rows);
  const at::Tensor workspace =
      at::empty({ScoringFixedBytes() + rows * row_bytes}, hidden_NH.options().dtype(at::kByte));
  CheckLaunch(kernels.fused_scoring(problem, result, call.ContextForProducts(workspace)));
  const int32_t errors = scores.Fetch(output);
  TORCH_CHECK(errors == 0, "ids outside of the vocabulary: error word ", errors);
}

}  // namespace taopd
