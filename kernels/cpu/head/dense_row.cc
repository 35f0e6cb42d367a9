#include "taopd/head/dense_row.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace taopd::cpu {

std::vector<double> LogSoftmax(const std::vector<double>& logits) {
  const double log_sum_exp = LogSumExp(logits.data(), static_cast<int32_t>(logits.size()));
  std::vector<double> log_p(logits);
  for (double& x : log_p) x -= log_sum_exp;
  return log_p;
}

std::vector<int32_t> LargestIds(const std::vector<double>& numbers, int32_t k) {
  std::vector<int32_t> ids(numbers.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t left, int32_t right) { return numbers[left] > numbers[right]; });
  ids.resize(k);
  return ids;
}

RowStatus EvaluateDenseRow(const ObjectiveTerms& objective, const DenseRow& dense,
                           DenseRowResult* out) {
  const auto vocab_size = static_cast<int32_t>(dense.logits.size());
  const auto k = static_cast<int32_t>(dense.support_ids.size());
  const RowStatus status = CheckSupportSize(k, TraitsOf(objective), vocab_size);
  if (status != RowStatus::kOk) return status;
  std::vector<uint8_t> in_support(vocab_size, 0);
  for (int32_t id : dense.support_ids) {
    if (in_support[id]) return RowStatus::kDuplicateSupportId;
    in_support[id] = 1;
  }

  const std::vector<double> log_p_all = LogSoftmax(dense.logits);
  std::vector<double> log_p, p, rest, gradient(k), scratch(k);
  for (int32_t id : dense.support_ids) {
    log_p.push_back(log_p_all[id]);
    p.push_back(std::exp(log_p.back()));
  }
  double entropy = 0;
  for (int32_t v = 0; v < vocab_size; ++v) {
    if (!in_support[v]) rest.push_back(log_p_all[v]);
    if (log_p_all[v] != NegativeInfinity<double>()) {
      entropy -= std::exp(log_p_all[v]) * log_p_all[v];
    }
  }
  ObjectiveRow<double> row;
  row.k = k;
  row.log_p = log_p.data();
  row.p = p.data();
  row.log_q = dense.teacher_log_probs.data();
  row.log_p_tail = LogSumExp(rest.data(), static_cast<int32_t>(rest.size()));
  row.log_q_tail = dense.teacher_log_tail;
  row.log_p_sampled = log_p_all[dense.sampled_id];
  row.log_q_sampled = dense.teacher_sampled_log_prob;
  row.log_behavior_sampled = dense.behavior_log_prob.value_or(row.log_p_sampled);
  row.sampled_in_support = in_support[dense.sampled_id] != 0;
  row.teacher_entropy = dense.teacher_entropy;
  row.advantage = dense.advantage;
  const TeacherTail teacher_tail = FillTeacherTail(&row, k == vocab_size);
  ObjectiveResult<double> result;
  result.support_gradient = gradient.data();
  EvaluateObjectives(objective, row, scratch.data(), &result);

  out->loss = result.loss;
  out->gradient.resize(vocab_size);
  for (int32_t v = 0; v < vocab_size; ++v) {
    out->gradient[v] = result.a * std::exp(log_p_all[v]);
  }
  for (int32_t j = 0; j < k; ++j) out->gradient[dense.support_ids[j]] = gradient[j];
  out->gradient[dense.sampled_id] += result.c;

  std::vector<double> q(k);
  LoopOfExp()(dense.teacher_log_probs.data(), k, q.data());
  WriteRowMetrics(row, q.data(), result, entropy < 0 ? 0 : entropy, teacher_tail,
                  out->metrics.data());
  if (k == 0) return RowStatus::kOk;
  std::vector<uint8_t> in_top_k(k, 0);
  int32_t overlap = 0;
  for (int32_t id : LargestIds(dense.logits, k)) {
    if (!in_support[id]) continue;
    ++overlap;
    const auto place = std::find(dense.support_ids.begin(), dense.support_ids.end(), id);
    in_top_k[place - dense.support_ids.begin()] = 1;
  }
  out->metrics[kTopKOverlap] = overlap;
  out->metrics[kTopKOverlapAdvantage] =
      OverlapAdvantage(row.log_p, row.log_q, q.data(), k, in_top_k.data());
  return RowStatus::kOk;
}

}  // namespace taopd::cpu
