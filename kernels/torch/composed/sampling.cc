#include "kernels/torch/composed/sampling.h"

#include <algorithm>
#include <limits>

namespace taopd {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// The float64 copies of this many logits exist at a time.
constexpr int64_t kLogitsAtOnce = int64_t{4} << 20;

// Returns the lowest id of the largest logit of each row, [C, 1].
at::Tensor LargestIds(const at::Tensor& logits_CV, const at::Tensor& max_C1) {
  const int64_t vocab_size = logits_CV.size(1);
  const at::Tensor ids_1V =
      at::arange(vocab_size, logits_CV.options().dtype(at::kLong)).unsqueeze(0);
  return at::where(logits_CV.eq(max_C1), ids_1V, at::full({}, vocab_size, ids_1V.options()))
      .amin(1, /*keepdim=*/true)
      .clamp_max(vocab_size - 1);
}

void SampleChunk(const at::Tensor& logits_CV, const at::Tensor& uniforms_C,
                 const at::Tensor& temperatures_C, const at::Tensor& out_4C) {
  const at::Tensor max_C1 = logits_CV.amax(1, /*keepdim=*/true);
  // NaN is the largest number of a row that holds one.
  const at::Tensor invalid_C1 = at::isfinite(max_C1).logical_not();
  const at::Tensor is_greedy_C1 = temperatures_C.eq(0).unsqueeze(1);
  const at::Tensor temperature_C1 =
      temperatures_C.unsqueeze(1).to(at::kDouble).masked_fill(is_greedy_C1, 1);
  const at::Tensor below_CV = logits_CV.to(at::kDouble) - max_C1.to(at::kDouble);
  const at::Tensor sums_CV = (below_CV / temperature_C1).exp_().cumsum(1);
  const at::Tensor total_C1 = sums_CV.narrow(1, sums_CV.size(1) - 1, 1);
  // The last token that has a weight, for a target that rounds to the total.
  const at::Tensor last_C1 = sums_CV.lt(total_C1).sum(1, /*keepdim=*/true);
  const at::Tensor target_C1 = uniforms_C.unsqueeze(1) * total_C1;
  const at::Tensor drawn_C1 = at::minimum(
      at::searchsorted(sums_CV, target_C1, /*out_int32=*/false, /*right=*/true), last_C1);
  const at::Tensor ids_C1 =
      at::where(is_greedy_C1, LargestIds(logits_CV, max_C1), drawn_C1).masked_fill_(invalid_C1, 0);
  const at::Tensor own_C1 = below_CV.gather(1, ids_C1);
  const at::Tensor log_probs_C1 = own_C1 / temperature_C1 - total_C1.log();
  const at::Tensor raw_C1 = own_C1 - below_CV.exp().sum(1, /*keepdim=*/true).log();
  const auto bits_of = [&](const at::Tensor& x_C1) {
    return x_C1.masked_fill(invalid_C1, kNaN).to(at::kFloat).view(at::kInt).squeeze(1);
  };
  out_4C[0].copy_(ids_C1.masked_fill(invalid_C1, -1).squeeze(1));
  out_4C[1].copy_(invalid_C1.squeeze(1));
  out_4C[2].copy_(bits_of(log_probs_C1));
  out_4C[3].copy_(bits_of(raw_C1));
}

}  // namespace

at::Tensor SampleRowsComposed(const at::Tensor& logits_SV, const at::Tensor& uniforms_S,
                              const at::Tensor& temperatures_S) {
  const int64_t num_rows = logits_SV.size(0);
  const at::Tensor out_4S = at::empty({4, num_rows}, logits_SV.options().dtype(at::kInt));
  const int64_t chunk = std::max<int64_t>(1, kLogitsAtOnce / logits_SV.size(1));
  for (int64_t begin = 0; begin < num_rows; begin += chunk) {
    const int64_t num = std::min(chunk, num_rows - begin);
    SampleChunk(logits_SV.narrow(0, begin, num), uniforms_S.narrow(0, begin, num),
                temperatures_S.narrow(0, begin, num), out_4S.narrow(1, begin, num));
  }
  return out_4S;
}

}  // namespace taopd
