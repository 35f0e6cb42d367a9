#include "kernels/torch/head/student_rows_aten.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/head/row_support.h"

namespace taopd {
namespace {

// Row-wise numbers on the CPU in float64.
struct HostRows {
  explicit HostRows(const at::Tensor& tensor)
      : values(tensor.defined() ? tensor.to(at::kCPU, at::kDouble).contiguous() : tensor),
        data(tensor.defined() ? values.const_data_ptr<double>() : nullptr) {}
  double At(int64_t n, double otherwise) const { return data != nullptr ? data[n] : otherwise; }
  at::Tensor values;
  const double* data;
};

// uint8 [C, k] on the CPU: which support ids are among the row's largest logits, as many as the row
// has support ids.
at::Tensor InStudentTopK(const at::Tensor& logits_CV, const at::Tensor& support_Ck,
                         const at::Tensor& padding_Ck) {
  const at::Tensor top_Ck = std::get<1>(logits_CV.topk(support_Ck.size(1), 1));
  // Padding makes the row's k smaller: of the sorted top ids only the first k count.
  at::Tensor marks_CV = at::zeros(logits_CV.sizes(), logits_CV.options().dtype(at::kByte));
  marks_CV.scatter_(1, top_Ck, padding_Ck.logical_not().to(at::kByte));
  return marks_CV.gather(1, support_Ck).to(at::kCPU).contiguous();
}

}  // namespace

void StudentRowsAten(const HeadTargets& targets, const HeadOptions& options, at::Tensor logits_CV,
                     at::Tensor loss_C, at::Tensor metrics_CM) {
  const int64_t num_rows = logits_CV.size(0);
  const bool has_support = targets.support_ids_Nk.defined();
  const int64_t k = has_support ? targets.support_ids_Nk.size(1) : 0;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor sampled_C1 = targets.sampled_ids_N.to(at::kLong).unsqueeze(1);
  const uint32_t needs = NeedsOf(options.objective);
  at::Tensor support_Ck, padding_Ck;
  if (has_support) {
    support_Ck = targets.support_ids_Nk.to(at::kLong);
    padding_Ck = support_Ck.lt(0);
    if (k > 1) {
      const at::Tensor sorted_Ck = std::get<0>(support_Ck.sort(1));
      const at::Tensor later_Ck = sorted_Ck.narrow(1, 1, k - 1);
      TORCH_CHECK(!later_Ck.eq(sorted_Ck.narrow(1, 0, k - 1))
                       .logical_and(later_Ck.ge(0))
                       .any()
                       .item<bool>(),
                  cpu::Describe(cpu::RowStatus::kDuplicateSupportId));
    }
  }

  // The support leaves the row: the rest is the tail.
  logits_CV.mul_(1 / options.temperature);
  const at::Tensor sampled_logit_C = logits_CV.gather(1, sampled_C1).squeeze(1).to(at::kDouble);
  at::Tensor taken_Ck = at::empty({num_rows, 0}, logits_CV.options().dtype(at::kDouble));
  at::Tensor in_top_k_Ck, empty_C1;  // rows without a support keep their logits
  if (has_support && k > 0) {
    // Padding gathers the row's first id of the support, whose place it may then write, too.
    const at::Tensor first_C1 = support_Ck.narrow(1, 0, 1).clamp_min(0);
    support_Ck = at::where(padding_Ck, first_C1, support_Ck);
    taken_Ck = logits_CV.gather(1, support_Ck).to(at::kDouble);
    if (options.top_k_metrics) in_top_k_Ck = InStudentTopK(logits_CV, support_Ck, padding_Ck);
    empty_C1 = padding_Ck.narrow(1, 0, 1);
    logits_CV.scatter_(1, support_Ck,
                       at::where(empty_C1, logits_CV.gather(1, support_Ck),
                                 -std::numeric_limits<double>::infinity()));
  }
  const at::Tensor max_C1 = logits_CV.amax(1, true);
  const at::Tensor shift_C1 =
      max_C1.masked_fill(max_C1.eq(-std::numeric_limits<double>::infinity()), 0);
  logits_CV.sub_(shift_C1);
  // sum e^x x through a buffer, with 0 for e^x = 0.
  const at::Tensor exp_x_CV = logits_CV.exp();
  const at::Tensor sum_C = exp_x_CV.sum(1, false, at::kFloat).to(at::kDouble);
  const at::Tensor sum_x_C = logits_CV.clamp_min_(-128).mul_(exp_x_CV).sum(1).to(at::kDouble);
  logits_CV.copy_(exp_x_CV);
  const at::Tensor shift_C = shift_C1.squeeze(1).to(at::kDouble);

  // One transfer for the O(k) numbers of every row.
  const at::Tensor packed =
      at::cat({taken_Ck, at::stack({sampled_logit_C, shift_C, sum_C, sum_x_C}, 1)}, 1)
          .to(at::kCPU)
          .contiguous();
  const double* packed_data = packed.const_data_ptr<double>();
  const HostRows log_q(targets.teacher_log_probs_Nk);
  const HostRows log_q_tail(targets.teacher_log_tail_N);
  const HostRows log_q_sampled(targets.teacher_sampled_log_probs_N);
  const HostRows teacher_entropy(targets.teacher_entropy_N);
  const HostRows log_behavior(targets.behavior_log_probs_N);
  const HostRows weights(targets.row_weights_N);
  const HostRows support(has_support ? targets.support_ids_Nk : at::Tensor());
  const HostRows sampled(targets.sampled_ids_N);

  // Support, dense factor, sampled.
  at::Tensor gradient_Cm = at::empty({num_rows, k + 2}, at::TensorOptions().dtype(at::kDouble));
  double* gradient = gradient_Cm.mutable_data_ptr<double>();
  std::vector<double> log_p(k), scratch(k);
  std::vector<int32_t> ids(k);
  for (int64_t n = 0; n < num_rows; ++n) {
    const double* numbers = packed_data + n * (k + 4);
    for (int64_t j = 0; j < k; ++j) ids[j] = static_cast<int32_t>(support.data[n * k + j]);
    const int32_t size = cpu::SupportSize(ids.data(), static_cast<int32_t>(k));
    const cpu::RowStatus status = cpu::CheckSupportSize(size, needs, logits_CV.size(1));
    TORCH_CHECK(status == cpu::RowStatus::kOk, cpu::Describe(status));
    const double shift = numbers[k + 1];
    const double sum = numbers[k + 2];
    const double tail = sum == 0 ? NegativeInfinity<double>() : shift + std::log(sum);
    const double log_sum_exp = LogAddExp(tail, LogSumExp(numbers, size));
    double entropy = 0;
    if (sum != 0) {
      entropy += std::exp(tail - log_sum_exp) * (log_sum_exp - shift - numbers[k + 3] / sum);
    }
    bool inside = false;
    for (int32_t j = 0; j < size; ++j) {
      log_p[j] = numbers[j] - log_sum_exp;
      if (log_p[j] != NegativeInfinity<double>()) entropy -= std::exp(log_p[j]) * log_p[j];
      inside = inside || ids[j] == sampled.data[n];
    }
    ObjectiveRow<double> row;
    row.k = size;
    row.log_p = log_p.data();
    row.log_q = log_q.data + (log_q.data != nullptr ? n * k : 0);
    row.log_p_tail = tail - log_sum_exp;
    row.log_q_tail = log_q_tail.At(n, nan);
    row.log_p_sampled = numbers[k] - log_sum_exp;
    row.log_q_sampled = log_q_sampled.At(n, nan);
    row.log_behavior_sampled = log_behavior.At(n, row.log_p_sampled);
    row.sampled_in_support = inside;
    row.teacher_entropy = teacher_entropy.At(n, nan);
    const TeacherTail teacher_tail = FillTeacherTail(&row, size == logits_CV.size(1));
    ObjectiveResult<double> result;
    result.support_gradient = gradient + n * (k + 2);
    EvaluateObjectives(options.objective, row, scratch.data(), &result);

    const double to_logits = weights.data[n] / options.temperature;
    for (int64_t j = 0; j < k; ++j) {
      // Padding stands for the first id, see above.
      result.support_gradient[j] = j < size   ? result.support_gradient[j] * to_logits
                                   : size > 0 ? result.support_gradient[0]
                                              : 0;
    }
    result.support_gradient[k] =
        sum == 0 ? 0 : result.a * to_logits * std::exp(shift - log_sum_exp);
    result.support_gradient[k + 1] = result.c * to_logits;
    loss_C[n] = result.loss;
    float* metrics = metrics_CM.mutable_data_ptr<float>() + n * kNumHeadMetrics;
    WriteRowMetrics(row, result, entropy < 0 ? 0 : entropy, teacher_tail, metrics);
    if (in_top_k_Ck.defined() && size > 0) {
      const uint8_t* in_top_k = in_top_k_Ck.const_data_ptr<uint8_t>() + n * k;
      int32_t overlap = 0;
      for (int32_t j = 0; j < size; ++j) overlap += in_top_k[j];
      metrics[kTopKOverlap] = static_cast<float>(overlap);
      metrics[kTopKOverlapAdvantage] =
          static_cast<float>(OverlapAdvantage(row.log_p, row.log_q, size, in_top_k));
    }
  }

  const at::Tensor on_device = gradient_Cm.to(logits_CV.options());
  logits_CV.mul_(on_device.narrow(1, k, 1));
  if (has_support && k > 0) {
    logits_CV.scatter_(
        1, support_Ck,
        at::where(empty_C1, logits_CV.gather(1, support_Ck), on_device.narrow(1, 0, k)));
  }
  logits_CV.scatter_add_(1, sampled_C1, on_device.narrow(1, k + 1, 1));
}

}  // namespace taopd
