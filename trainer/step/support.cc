#include "trainer/step/support.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace taopd {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

absl::Status CheckSizes(const SupportOptions& options, size_t num_rows, const TeacherScores& scores) {
  const auto top_k = static_cast<size_t>(options.teacher_top_k);
  const auto num_candidates = static_cast<size_t>(options.student_top_k);
  const bool dense = options.kind == SupportKind::kFullVocabulary;
  const bool fits = scores.sampled_log_probs.size() == num_rows && scores.log_tail.size() == num_rows &&
                    scores.ids.size() == num_rows * top_k && scores.log_probs.size() == num_rows * top_k &&
                    scores.candidate_log_probs.size() == num_rows * num_candidates &&
                    scores.candidate_log_tail.size() == (num_candidates > 0 ? num_rows : 0) &&
                    (!dense || (num_rows > 0 && scores.dense_log_probs.size() % num_rows == 0 &&
                                scores.dense_log_probs.size() / num_rows >= static_cast<size_t>(options.vocab_size)));
  if (fits) return absl::OkStatus();
  return DataLoss("got scores of ", scores.sampled_log_probs.size(), " rows for a response of ", num_rows, " tokens");
}

void ReduceToUnion(const SupportOptions& options, const Rollout& rollout, TeacherScores* scores) {
  const int32_t top_k = options.teacher_top_k, num_candidates = options.student_top_k;
  const int64_t k = int64_t{top_k} + num_candidates;
  const auto num_rows = static_cast<int64_t>(scores->log_tail.size());
  std::vector<int32_t> ids_Rk(num_rows * k, -1);
  std::vector<float> log_probs_Rk(num_rows * k, kMinusInf);
  for (int64_t r = 0; r < num_rows; ++r) {
    int32_t* ids = ids_Rk.data() + r * k;
    float* log_probs = log_probs_Rk.data() + r * k;
    std::copy_n(scores->ids.begin() + r * top_k, top_k, ids);
    std::copy_n(scores->log_probs.begin() + r * top_k, top_k, log_probs);
    int64_t size = top_k;
    for (int64_t j = r * num_candidates; j < (r + 1) * num_candidates; ++j) {
      const int32_t id = rollout.top_ids[j];
      if (std::find(ids, ids + top_k, id) != ids + top_k) continue;
      ids[size] = id;
      log_probs[size] = scores->candidate_log_probs[j];
      ++size;
    }
  }
  scores->ids = std::move(ids_Rk);
  scores->log_probs = std::move(log_probs_Rk);
  scores->log_tail = std::move(scores->candidate_log_tail);
}

// The teacher's vocabulary may be larger: padding, which the student cannot say.
void CutToVocabulary(int64_t vocab_size, TeacherScores* scores) {
  const auto num_rows = static_cast<int64_t>(scores->sampled_log_probs.size());
  const int64_t width = static_cast<int64_t>(scores->dense_log_probs.size()) / num_rows;
  if (width == vocab_size) return;
  std::vector<float>& dense = scores->dense_log_probs;
  for (int64_t r = 0; r < num_rows; ++r) {
    std::copy_n(dense.begin() + r * width, vocab_size, dense.begin() + r * vocab_size);
  }
  dense.resize(num_rows * vocab_size);
}

}  // namespace

TeacherRequest MakeTeacherRequest(const SupportOptions& options, const Rollout& rollout, std::string request_id) {
  TeacherRequest request;
  request.request_id = std::move(request_id);
  request.token_ids = rollout.prompt_ids;
  request.token_ids.insert(request.token_ids.end(), rollout.response_ids.begin(), rollout.response_ids.end());
  request.score_start = static_cast<int64_t>(rollout.prompt_ids.size());
  request.top_k = options.teacher_top_k;
  request.temperature = options.temperature;
  request.entropy = options.teacher_entropy;
  request.dense = options.kind == SupportKind::kFullVocabulary;
  request.num_candidates = options.student_top_k;
  if (options.student_top_k > 0) request.candidate_ids = rollout.top_ids;
  return request;
}

absl::Status ReduceToSupport(const SupportOptions& options, const Rollout& rollout, TeacherScores* scores) {
  TAOPD_RETURN_IF_ERROR(CheckSizes(options, rollout.response_ids.size(), *scores));
  const auto beyond = std::find_if(scores->ids.begin(), scores->ids.end(),
                                   [&](int32_t id) { return id < 0 || id >= options.vocab_size; });
  if (beyond != scores->ids.end()) {
    return FailedPrecondition("the teacher's token id ", *beyond, " is beyond the student's vocabulary of ",
                              options.vocab_size);
  }
  switch (options.kind) {
    case SupportKind::kTeacher:
      break;
    case SupportKind::kStudent:
      scores->ids = rollout.top_ids;
      scores->log_probs = std::move(scores->candidate_log_probs);
      scores->log_tail = std::move(scores->candidate_log_tail);
      break;
    case SupportKind::kUnion:
      ReduceToUnion(options, rollout, scores);
      break;
    case SupportKind::kFullVocabulary:
      CutToVocabulary(options.vocab_size, scores);
      break;
  }
  scores->top_k = options.teacher_top_k + options.student_top_k;
  scores->candidate_log_probs.clear();
  scores->candidate_log_tail.clear();
  return absl::OkStatus();
}

}  // namespace taopd
