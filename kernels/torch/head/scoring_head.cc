#include "kernels/torch/head/scoring_head.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/head/scoring_rows.h"
#ifdef TAOPD_CUDA
#include "kernels/torch/head/cuda_heads.h"
#endif
#include "kernels/torch/composed/scoring_rows.h"
#include "kernels/torch/head/head_gemm.h"
#include "kernels/torch/kernel_choice.h"
#include "kernels/torch/parallel_loop.h"
#include "taopd/head/logit_chunk.h"

namespace taopd {
namespace {

at::Tensor CheckedIds(const at::Tensor& ids, const char* name, int64_t num_rows, int64_t dim,
                      int64_t vocab_size) {
  if (!ids.defined()) return ids;
  TORCH_CHECK(ids.dim() == dim && ids.size(0) == num_rows, name, " has shape ", ids.sizes(),
              ", must have ", dim, " dimensions and ", num_rows, " rows");
  TORCH_CHECK(ids.scalar_type() == at::kInt, name, " is ", ids.scalar_type(), ", must be Int");
  const at::Tensor on_cpu = ids.to(at::kCPU).contiguous();
  CheckIds(on_cpu, name, /*lowest=*/0, vocab_size);
  return on_cpu;
}

// Runs the row kernel over a chunk on the CPU; same contract as ScoringRowsComposed.
void ScoringRowsCpu(const at::Tensor& logits_CV, const at::Tensor& sampled_N,
                    const at::Tensor& candidates_NM, const ScoringOptions& options, int64_t first,
                    ScoringOutput* output) {
  const int64_t vocab_size = logits_CV.size(1);
  const int64_t k = options.top_k;
  const int64_t num_candidates = candidates_NM.defined() ? candidates_NM.size(1) : 0;
  float* logits = logits_CV.mutable_data_ptr<float>();
  ParallelLoop(logits_CV.size(0), RowsPerTask(vocab_size), [&](int64_t begin, int64_t end) {
    cpu::ScoringRowScratch scratch;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t n = first + row;
      cpu::ScoringRowRequest request;
      request.top_k = options.top_k;
      request.temperature = options.temperature;
      request.entropy = options.entropy;
      request.rank = options.rank;
      if (sampled_N.defined()) request.sampled_id = sampled_N.const_data_ptr<int32_t>() + n;
      cpu::ScoringRowResult result;
      if (num_candidates > 0) {
        request.candidate_ids = candidates_NM.const_data_ptr<int32_t>() + n * num_candidates;
        request.num_candidates = static_cast<int32_t>(num_candidates);
        result.candidate_log_probs =
            output->candidate_log_probs_NM.mutable_data_ptr<float>() + n * num_candidates;
      }
      if (options.dense) {
        result.dense_log_probs =
            output->dense_log_probs_NV.mutable_data_ptr<float>() + n * vocab_size;
      }
      result.ids = output->ids_Nk.mutable_data_ptr<int32_t>() + n * k;
      result.log_probs = output->log_probs_Nk.mutable_data_ptr<float>() + n * k;
      cpu::ScoringRow(request, logits + row * vocab_size, vocab_size, &scratch, &result);
      output->log_tail_N.mutable_data_ptr<float>()[n] = result.log_tail;
      if (candidates_NM.defined()) {
        output->candidate_log_tail_N.mutable_data_ptr<float>()[n] = result.candidate_log_tail;
      }
      output->log_support_mass_N.mutable_data_ptr<float>()[n] = result.log_support_mass;
      output->log_sum_exp_N.mutable_data_ptr<float>()[n] = result.log_sum_exp;
      if (sampled_N.defined()) {
        output->sampled_log_probs_N.mutable_data_ptr<float>()[n] = result.sampled_log_prob;
        if (options.rank)
          output->sampled_ranks_N.mutable_data_ptr<int32_t>()[n] = result.sampled_rank;
      }
      if (options.entropy) output->entropy_N.mutable_data_ptr<float>()[n] = result.entropy;
    }
  });
}

// The inputs and outputs of a call: checked ids on the CPU, and tensors for the results.
struct ScoringCall {
  at::Tensor sampled_N, candidates_NM;
  ScoringOutput output;
};

ScoringCall MakeCall(int64_t num_rows, int64_t vocab_size, const at::Tensor& sampled_ids_N,
                     const at::Tensor& candidate_ids_NM, const ScoringOptions& options) {
  const int64_t k = options.top_k;
  TORCH_CHECK(k >= 0 && k <= vocab_size, "top_k is ", k, ", must be in [0, ", vocab_size, "]");
  TORCH_CHECK(options.temperature > 0 && std::isfinite(options.temperature), "temperature is ",
              options.temperature, ", must be positive");
  ScoringCall call;
  call.sampled_N = CheckedIds(sampled_ids_N, "sampled_ids", num_rows, 1, vocab_size);
  call.candidates_NM = CheckedIds(candidate_ids_NM, "candidate_ids", num_rows, 2, vocab_size);

  const at::TensorOptions floats = at::TensorOptions().dtype(at::kFloat);
  const at::TensorOptions ints = at::TensorOptions().dtype(at::kInt);
  ScoringOutput& output = call.output;
  output.ids_Nk = at::empty({num_rows, k}, ints);
  output.log_probs_Nk = at::empty({num_rows, k}, floats);
  output.log_tail_N = at::empty({num_rows}, floats);
  output.log_support_mass_N = at::empty({num_rows}, floats);
  output.log_sum_exp_N = at::empty({num_rows}, floats);
  if (call.sampled_N.defined()) {
    output.sampled_log_probs_N = at::empty({num_rows}, floats);
    if (options.rank) output.sampled_ranks_N = at::empty({num_rows}, ints);
  }
  if (options.entropy) output.entropy_N = at::empty({num_rows}, floats);
  if (call.candidates_NM.defined()) {
    output.candidate_log_probs_NM = at::empty(call.candidates_NM.sizes(), floats);
    output.candidate_log_tail_N = at::empty({num_rows}, floats);
  }
  if (options.dense) output.dense_log_probs_NV = at::empty({num_rows, vocab_size}, floats);
  return call;
}

// Scores rows [first, first + C) of a call.
void ScoreChunk(const at::Tensor& logits_CV, const ScoringOptions& options, int64_t first,
                ScoringCall* call) {
  const bool has_kernel = logits_CV.is_cpu() && UsesCustom(KernelKind::kScoringHead);
  const auto row_work = has_kernel ? ScoringRowsCpu : ScoringRowsComposed;
  row_work(logits_CV, call->sampled_N, call->candidates_NM, options, first, &call->output);
}

}  // namespace

ScoringOutput ScoreRowsOfLogits(const at::Tensor& logits_NV, const at::Tensor& sampled_ids_N,
                                const at::Tensor& candidate_ids_NM, const ScoringOptions& options) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(
      logits_NV.dim() == 2 && logits_NV.scalar_type() == at::kFloat && logits_NV.is_contiguous(),
      "logits must be contiguous rows of Float, are ", logits_NV.scalar_type(), " ",
      logits_NV.sizes());
  ScoringCall call =
      MakeCall(logits_NV.size(0), logits_NV.size(1), sampled_ids_N, candidate_ids_NM, options);
  ScoreChunk(logits_NV, options, /*first=*/0, &call);
  return call.output;
}

ScoringOutput ScoreRowsOfHead(const at::Tensor& hidden_NH, const HeadMatrix& head,
                              const at::Tensor& sampled_ids_N, const at::Tensor& candidate_ids_NM,
                              const ScoringOptions& options) {
  const at::NoGradGuard no_grad;
  CheckHeadInputs(hidden_NH, head);
  const int64_t num_rows = hidden_NH.size(0);
  const int64_t vocab_size = head.vocab_size();
  ScoringCall call = MakeCall(num_rows, vocab_size, sampled_ids_N, candidate_ids_NM, options);

#ifdef TAOPD_CUDA
  // float16, larger k and dense rows use the composition below.
  if (hidden_NH.is_cuda() && UsesCustom(KernelKind::kScoringHead) &&
      hidden_NH.scalar_type() != at::kHalf && options.top_k <= kMaxScoringTopK && !options.dense) {
    ScoreRowsOfHeadCuda(hidden_NH, head.lm_head_VH, call.sampled_N, call.candidates_NM, options,
                        &call.output);
    return call.output;
  }
#endif
  const HeadGemm gemm(head);
  const bool has_cpu_kernel = hidden_NH.is_cpu() && UsesCustom(KernelKind::kScoringHead);
  const int64_t chunk = std::min(
      std::max<int64_t>(num_rows, 1),
      LogitChunkRows(has_cpu_kernel, options.workspace_bytes, vocab_size, kScoringBuffersOnDevice));
  at::Tensor workspace_CV = at::empty({chunk, vocab_size}, hidden_NH.options().dtype(at::kFloat));
  for (int64_t begin = 0; begin < num_rows; begin += chunk) {
    const int64_t num = std::min(chunk, num_rows - begin);
    const at::Tensor logits_CV = workspace_CV.narrow(0, 0, num);
    gemm.Logits(hidden_NH.narrow(0, begin, num), logits_CV);
    ScoreChunk(logits_CV, options, begin, &call);
  }
  return call.output;
}

}  // namespace taopd
