#include "kernels/torch/sampling/row_candidates.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "kernels/torch/upload.h"

namespace taopd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// The float64 copies of this many logits exist at a time.
constexpr int64_t kSummarizedAtOnce = int64_t{4} << 20;
// Columns of a summary after those of the candidates.
constexpr int64_t kNumTotals = 3;

// Returns int64 [R, 2 + G]: the rows, the bits of float64 temperatures, and the named ids.
at::Tensor Numbers(const std::vector<RowToSummarize>& rows) {
  size_t most_ids = 0;
  for (const RowToSummarize& row : rows) most_ids = std::max(most_ids, row.ids.size());
  const auto num_columns = static_cast<int64_t>(2 + most_ids);
  const at::Tensor numbers = at::zeros({static_cast<int64_t>(rows.size()), num_columns}, at::kLong);
  auto* to = numbers.mutable_data_ptr<int64_t>();
  for (const RowToSummarize& row : rows) {
    to[0] = row.row;
    to[1] = std::bit_cast<int64_t>(row.temperature == 0 ? 1.0 : double{row.temperature});
    std::copy(row.ids.begin(), row.ids.end(), to + 2);
    to += num_columns;
  }
  return numbers;
}

// Returns float64 [C, 3 N + kNumTotals]: the ids in ascending order, which may repeat, their logits
// and rest_sums_before, rest_max, rest_sum and raw_rest_sum.
at::Tensor SummarizeChunk(const at::Tensor& logits_CV, const at::Tensor& temperatures_C1,
                          const at::Tensor& named_CG) {
  const int64_t num_top = std::min(kTopCandidates, logits_CV.size(1));
  const at::Tensor top_CK =
      std::get<1>(logits_CV.topk(num_top, 1, /*largest=*/true, /*sorted=*/false));
  const at::Tensor ids_CN = std::get<0>(at::cat({top_CK, named_CG}, 1).sort(1));
  const at::Tensor rest_CV = logits_CV.to(at::kDouble).scatter_(1, ids_CN, -kInfinity);
  const at::Tensor max_C1 = rest_CV.amax(1, /*keepdim=*/true);
  const at::Tensor below_CV = rest_CV.sub_(max_C1.masked_fill(max_C1.eq(-kInfinity), 0));
  const at::Tensor raw_sum_C1 = below_CV.exp().sum(1, /*keepdim=*/true);
  const at::Tensor sums_CV = below_CV.div_(temperatures_C1).exp_().cumsum(1);
  return at::cat(
      {ids_CN.to(at::kDouble), logits_CV.gather(1, ids_CN).to(at::kDouble),
       sums_CV.gather(1, ids_CN), max_C1, sums_CV.narrow(1, sums_CV.size(1) - 1, 1), raw_sum_C1},
      1);
}

// `summary` is a row of SummarizeChunk's result on the host.
RowCandidates CandidatesOf(const double* summary, int64_t num) {
  RowCandidates candidates;
  for (int64_t n = 0; n < num; ++n) {
    const auto id = static_cast<int32_t>(summary[n]);
    if (n > 0 && id == candidates.ids.back()) continue;
    candidates.ids.push_back(id);
    candidates.logits.push_back(static_cast<float>(summary[num + n]));
    candidates.rest_sums_before.push_back(summary[2 * num + n]);
  }
  const double* const totals = summary + 3 * num;
  candidates.rest_max = static_cast<float>(totals[0]);
  candidates.rest_sum = totals[1];
  candidates.raw_rest_sum = totals[2];
  return candidates;
}

}  // namespace

std::vector<RowCandidates> SummarizeRows(const at::Tensor& logits_SV,
                                         const std::vector<RowToSummarize>& rows) {
  if (rows.empty()) return {};
  TORCH_CHECK(logits_SV.dim() == 2 && logits_SV.scalar_type() == at::kFloat,
              "logits must be rows of Float, are ", logits_SV.scalar_type(), " ",
              logits_SV.sizes());
  const at::Tensor numbers = Upload(Numbers(rows), logits_SV.device());
  const int64_t num_rows = numbers.size(0);
  const int64_t chunk = std::max<int64_t>(1, kSummarizedAtOnce / logits_SV.size(1));
  std::vector<at::Tensor> chunks;
  for (int64_t begin = 0; begin < num_rows; begin += chunk) {
    const at::Tensor chunk_numbers = numbers.narrow(0, begin, std::min(chunk, num_rows - begin));
    chunks.push_back(SummarizeChunk(logits_SV.index_select(0, chunk_numbers.select(1, 0)),
                                    chunk_numbers.narrow(1, 1, 1).view(at::kDouble),
                                    chunk_numbers.narrow(1, 2, numbers.size(1) - 2)));
  }
  const at::Tensor on_host = at::cat(chunks).cpu();
  const int64_t num_columns = on_host.size(1);
  std::vector<RowCandidates> candidates;
  for (int64_t i = 0; i < num_rows; ++i) {
    candidates.push_back(CandidatesOf(on_host.const_data_ptr<double>() + i * num_columns,
                                      (num_columns - kNumTotals) / 3));
  }
  return candidates;
}

}  // namespace taopd
