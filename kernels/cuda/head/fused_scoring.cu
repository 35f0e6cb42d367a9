#include "taopd/head/fused_scoring.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <sstream>

#include "kernels/cuda/gemm/matmul.h"
#include "kernels/cuda/head/head_problem.h"
#include "kernels/cuda/head/scoring_row.h"
#include "kernels/cuda/launch.h"
#include "taopd/head/student_targets.h"

namespace taopd {
namespace cuda {
namespace {

std::string ArgumentError(const FusedScoringProblem& problem, const FusedScoringResult& result) {
  if (std::string error = SizesError(problem); !error.empty()) return error;
  std::ostringstream error;
  if (problem.top_k < 0 || problem.top_k > std::min<int64_t>(problem.vocab_size, kMaxScoringTopK)) {
    error << "top_k is " << problem.top_k << ", must be in [0, "
          << std::min<int64_t>(problem.vocab_size, kMaxScoringTopK) << "]";
  } else if (problem.num_rows > 0 &&
             (problem.hidden_NH == nullptr || problem.lm_head_VH == nullptr ||
              result.log_tail_N == nullptr || result.log_support_mass_N == nullptr ||
              result.log_sum_exp_N == nullptr)) {
    error << "hidden, lm_head, log_tail, log_support_mass and log_sum_exp are needed";
  } else if (problem.top_k > 0 && (result.ids_Nk == nullptr || result.log_probs_Nk == nullptr)) {
    error << "ids and log_probs are needed for top_k = " << problem.top_k;
  } else if (problem.sampled_ids_N != nullptr &&
             (result.sampled_log_probs_N == nullptr || result.errors == nullptr)) {
    error << "sampled_log_probs and errors are needed with sampled_ids";
  } else if (problem.sampled_ids_N == nullptr && result.sampled_ranks_N != nullptr) {
    error << "sampled_ranks needs sampled_ids";
  } else if (problem.num_candidates < 0 ||
             (problem.num_candidates > 0 &&
              (problem.candidate_ids_NM == nullptr || result.candidate_log_probs_NM == nullptr ||
               result.errors == nullptr))) {
    error << "candidate_ids, candidate_log_probs and errors are needed for "
          << problem.num_candidates << " candidates";
  }
  return error.str();
}

int64_t NumTiles(const FusedScoringProblem& problem) {
  return CeilDiv(problem.vocab_size, kScoringTile);
}

FusedScoringResult ResultsFrom(const FusedScoringProblem& problem, const FusedScoringResult& result,
                               int64_t row) {
  FusedScoringResult out = result;
  out.ids_Nk = RowsFrom(result.ids_Nk, row, problem.top_k);
  out.log_probs_Nk = RowsFrom(result.log_probs_Nk, row, problem.top_k);
  out.log_tail_N = RowsFrom(result.log_tail_N, row);
  out.log_support_mass_N = RowsFrom(result.log_support_mass_N, row);
  out.log_sum_exp_N = RowsFrom(result.log_sum_exp_N, row);
  out.sampled_log_probs_N = RowsFrom(result.sampled_log_probs_N, row);
  out.sampled_ranks_N = RowsFrom(result.sampled_ranks_N, row);
  out.entropy_N = RowsFrom(result.entropy_N, row);
  out.candidate_log_probs_NM = RowsFrom(result.candidate_log_probs_NM, row, problem.num_candidates);
  out.candidate_log_tail_N = RowsFrom(result.candidate_log_tail_N, row);
  return out;
}

}  // namespace
}  // namespace cuda

int64_t ScoringBytesPerRow(const FusedScoringProblem& problem) {
  return cuda::LogitsStride(problem.vocab_size) * static_cast<int64_t>(sizeof(float)) +
         cuda::NumTiles(problem) * static_cast<int64_t>(sizeof(cuda::TileSums) + sizeof(int32_t));
}

int64_t ScoringFixedBytes() { return cuda::kMatmulScratchBytes + 3 * 256; }

std::string FusedScoring(const FusedScoringProblem& problem, const FusedScoringResult& result,
                         const DeviceContext& context) {
  using namespace cuda;  // for the names of the layout
  std::string error = ArgumentError(problem, result);
  if (!error.empty() || problem.num_rows == 0) return error;
  const int64_t chunk = std::min(problem.num_rows, (context.workspace_bytes - ScoringFixedBytes()) /
                                                       ScoringBytesPerRow(problem));
  if (chunk < 1 || context.workspace == nullptr) {
    return WorkspaceTooSmall(context.workspace_bytes,
                             ScoringFixedBytes() + ScoringBytesPerRow(problem));
  }
  const int64_t stride = LogitsStride(problem.vocab_size);
  const int64_t num_tiles = NumTiles(problem);
  WorkspaceLayout layout;
  void* scratch = Place<char>(context.workspace, layout.Add(kMatmulScratchBytes));
  ScoringArguments args;
  args.logits = Place<float>(context.workspace, layout.Add(chunk * stride * 4));
  args.tiles = Place<TileSums>(
      context.workspace, layout.Add(chunk * num_tiles * static_cast<int64_t>(sizeof(TileSums))));
  args.selected_tiles = Place<int32_t>(context.workspace, layout.Add(chunk * num_tiles * 4));
  args.stride = stride;
  args.vocab_size = problem.vocab_size;
  args.scale = static_cast<float>(1 / problem.temperature);
  args.top_k = problem.top_k;
  args.num_tiles = static_cast<int32_t>(num_tiles);
  args.num_candidates = problem.num_candidates;
  for (int64_t begin = 0; begin < problem.num_rows; begin += chunk) {
    const int64_t num = std::min(chunk, problem.num_rows - begin);
    const void* hidden = static_cast<const char*>(problem.hidden_NH) +
                         begin * problem.hidden_stride * SizeOf(problem.dtype);
    error = Matmul(problem.dtype, num, problem.vocab_size, problem.hidden_size,
                   {hidden, problem.hidden_stride},
                   {problem.lm_head_VH, problem.lm_head_stride, /*transposed=*/true}, /*beta=*/0,
                   args.logits, stride, scratch, context);
    if (!error.empty()) return error;
    args.sampled_ids = RowsFrom(problem.sampled_ids_N, begin);
    args.candidate_ids = RowsFrom(problem.candidate_ids_NM, begin, problem.num_candidates);
    args.out = ResultsFrom(problem, result, begin);
    error = Launch("scoring rows", ScoringRow, num, kScoringThreads, context.stream, args);
    if (!error.empty()) return error;
  }
  return "";
}

}  // namespace taopd
