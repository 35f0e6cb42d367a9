#include "kernels/torch/composed/scoring_rows.h"

#include <limits>
#include <tuple>

namespace taopd {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Takes the candidates out of rows without their top-k, which are -inf. Returns their scaled logits
// in float64, with -inf for a repeated candidate and for one of the top-k.
at::Tensor TakeOutside(const at::Tensor& candidates_CM, double scale, const at::Tensor& logits_CV) {
  const at::Tensor sorted_CM = std::get<0>(candidates_CM.sort(1));
  const at::Tensor outside_CM = logits_CV.gather(1, sorted_CM).to(at::kDouble) * scale;
  const int64_t num_pairs = sorted_CM.size(1) - 1;
  const at::Tensor repeated_CM =
      sorted_CM.narrow(1, 1, num_pairs).eq(sorted_CM.narrow(1, 0, num_pairs));
  outside_CM.narrow(1, 1, num_pairs).masked_fill_(repeated_CM, -kInf);
  logits_CV.scatter_(1, sorted_CM, -kInf);
  return outside_CM;
}

// Rows without their top-k and candidates. The scaled logits are x + shift, and `sum` is of exp(x).
struct Complement {
  at::Tensor x_CV, shift_C, exp_CV, sum_C, log_sum_exp_C;
};

// Overwrites rows in which all other ids are -inf. The complement has its own maximum. Sums are in
// float32 blocks, as ATen computes them, logarithms in float64.
Complement SumComplement(const at::Tensor& logits_CV, double scale) {
  const at::Tensor max_C1 = logits_CV.amax(1, true);
  const at::Tensor shift_C1 = max_C1.masked_fill(max_C1.eq(-kInf), 0);
  logits_CV.sub_(shift_C1).mul_(scale);
  const at::Tensor exp_CV = logits_CV.exp();
  const at::Tensor sum_C = exp_CV.sum(1).to(at::kDouble);
  const at::Tensor shift_C = shift_C1.squeeze(1).to(at::kDouble) * scale;
  return {logits_CV, shift_C, exp_CV, sum_C, sum_C.log() + shift_C};
}

// Returns lse - sum_v p_v z_v over both parts: the complement, which is overwritten, and the scaled
// logits of the others. x is clamped so that exp(x) x is 0 for x = -inf, and not NaN.
at::Tensor Entropy(const Complement& rest, const at::Tensor& others_Cn,
                   const at::Tensor& log_sum_exp_C) {
  const at::Tensor sum_x_C = rest.exp_CV.mul_(rest.x_CV.clamp_min_(-128)).sum(1).to(at::kDouble);
  const at::Tensor rest_C = at::where(rest.sum_C.eq(0), at::zeros_like(rest.sum_C),
                                      (rest.log_sum_exp_C - log_sum_exp_C).exp() *
                                          (log_sum_exp_C - rest.shift_C - sum_x_C / rest.sum_C));
  const at::Tensor log_p_Cn = others_Cn - log_sum_exp_C.unsqueeze(1);
  const at::Tensor others_C = -(log_p_Cn.exp() * log_p_Cn.clamp_min(-1e4)).sum(1);
  return (rest_C + others_C).clamp_min(0);
}

}  // namespace

// The values of at::topk are exact, but its choice among equal ones is not specified. Everything
// above the k-th value theta is selected; the remaining places go to the lowest ids whose logit
// equals theta, which are those with the largest V - id.
at::Tensor TopKComposed(const at::Tensor& logits_CV, int64_t k) {
  const int64_t vocab_size = logits_CV.size(1);
  const at::Tensor clean_CV =
      at::where(at::isnan(logits_CV), at::full({}, -kInf, logits_CV.options()), logits_CV);
  if (k == 0) return at::empty({logits_CV.size(0), 0}, logits_CV.options().dtype(at::kLong));
  const at::Tensor theta_C1 = std::get<0>(clean_CV.topk(k, 1)).narrow(1, k - 1, 1);
  const at::Tensor ids_V = at::arange(vocab_size, logits_CV.options().dtype(at::kInt));
  // Above theta: larger than every tie; at theta: ordered by id; below: never selected.
  const at::Tensor key_CV = (vocab_size - ids_V).unsqueeze(0).expand_as(clean_CV);
  const at::Tensor above_CV = clean_CV > theta_C1;
  const at::Tensor rank_CV = at::where(above_CV, at::full({}, vocab_size + 1, key_CV.options()),
                                       key_CV.masked_fill(clean_CV < theta_C1, 0));
  const at::Tensor chosen_Ck = std::get<0>(std::get<1>(rank_CV.topk(k, 1)).sort(1));
  // Sorts by id first, then stably by descending logit.
  const at::Tensor order_Ck = std::get<1>(
      clean_CV.gather(1, chosen_Ck).sort(/*stable=*/true, /*dim=*/1, /*descending=*/true));
  return chosen_Ck.gather(1, order_Ck);
}

void ScoringRowsComposed(const at::Tensor& logits_CV, const at::Tensor& sampled_N,
                         const at::Tensor& candidates_NM, const ScoringOptions& options,
                         int64_t first, ScoringOutput* output) {
  const int64_t num_rows = logits_CV.size(0);
  const auto rows_of = [&](const at::Tensor& tensor) { return tensor.narrow(0, first, num_rows); };
  const double scale = 1 / options.temperature;

  // Everything that reads single logits comes before the top-k are removed from the row.
  at::Tensor sampled_C1, candidates_CM, candidate_logits_CM;
  if (sampled_N.defined()) {
    const at::Tensor ids_C1 = rows_of(sampled_N).to(logits_CV.device(), at::kLong).unsqueeze(1);
    sampled_C1 = logits_CV.gather(1, ids_C1);
    if (options.rank) rows_of(output->sampled_ranks_N).copy_((logits_CV >= sampled_C1).sum(1));
  }
  if (candidates_NM.defined()) {
    candidates_CM = rows_of(candidates_NM).to(logits_CV.device(), at::kLong);
    candidate_logits_CM = logits_CV.gather(1, candidates_CM);
  }
  const at::Tensor dense_CV = options.dense ? logits_CV.clone() : at::Tensor();
  const at::Tensor ids_Ck = TopKComposed(logits_CV, options.top_k);
  const at::Tensor support_Ck = logits_CV.gather(1, ids_Ck).to(at::kDouble) * scale;
  logits_CV.scatter_(1, ids_Ck, -kInf);
  at::Tensor outside_CM = at::empty({num_rows, 0}, support_Ck.options());
  if (candidates_NM.defined() && candidates_NM.size(1) > 0)
    outside_CM = TakeOutside(candidates_CM, scale, logits_CV);

  const Complement rest = SumComplement(logits_CV, scale);
  const at::Tensor tail_C = at::logaddexp(rest.log_sum_exp_C, at::logsumexp(outside_CM, 1));
  const at::Tensor log_support_C = at::logsumexp(support_Ck, 1);
  const at::Tensor log_sum_exp_C = at::logaddexp(tail_C, log_support_C);
  const at::Tensor log_sum_exp_C1 = log_sum_exp_C.unsqueeze(1);

  rows_of(output->ids_Nk).copy_(ids_Ck);
  rows_of(output->log_probs_Nk).copy_(support_Ck - log_sum_exp_C1);
  rows_of(output->log_tail_N).copy_(tail_C - log_sum_exp_C);
  rows_of(output->log_support_mass_N).copy_(log_support_C - log_sum_exp_C);
  rows_of(output->log_sum_exp_N).copy_(log_sum_exp_C);
  if (sampled_N.defined()) {
    rows_of(output->sampled_log_probs_N)
        .copy_((sampled_C1.to(at::kDouble) * scale - log_sum_exp_C1).squeeze(1));
  }
  if (candidates_NM.defined()) {
    rows_of(output->candidate_log_probs_NM)
        .copy_(candidate_logits_CM.to(at::kDouble) * scale - log_sum_exp_C1);
    rows_of(output->candidate_log_tail_N).copy_(rest.log_sum_exp_C - log_sum_exp_C);
  }
  if (options.dense) {
    rows_of(output->dense_log_probs_NV).copy_(dense_CV.to(at::kDouble) * scale - log_sum_exp_C1);
  }
  if (options.entropy) {
    const at::Tensor others_Cn = at::cat({support_Ck, outside_CM}, 1);
    rows_of(output->entropy_N).copy_(Entropy(rest, others_Cn, log_sum_exp_C));
  }
}

}  // namespace taopd
