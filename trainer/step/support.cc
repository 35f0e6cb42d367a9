#include "trainer/step/support.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "taopd/objective/log_math.h"

namespace taopd {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

absl::Status CheckSizes(const SupportOptions& options, size_t num_rows,
                        const TeacherScores& scores) {
  const auto top_k = static_cast<size_t>(options.teacher_top_k);
  const auto num_candidates = static_cast<size_t>(options.student_top_k);
  const bool dense = options.kind == SupportKind::kFullVocabulary;
  const bool fits =
      scores.sampled_log_probs.size() == num_rows && scores.log_tail.size() == num_rows &&
      scores.ids.size() == num_rows * top_k && scores.log_probs.size() == num_rows * top_k &&
      scores.candidate_log_probs.size() == num_rows * num_candidates &&
      scores.candidate_log_tail.size() == (num_candidates > 0 ? num_rows : 0) &&
      (!dense ||
       (num_rows > 0 && scores.dense_log_probs.size() % num_rows == 0 &&
        scores.dense_log_probs.size() / num_rows >= static_cast<size_t>(options.vocab_size)));
  if (fits) return absl::OkStatus();
  return DataLoss("got scores of ", scores.sampled_log_probs.size(), " rows for a response of ",
                  num_rows, " tokens");
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
    const auto teachers = scores->ids.begin() + r * top_k;
    const int64_t num_teachers = std::find(teachers, teachers + top_k, -1) - teachers;
    std::copy_n(teachers, num_teachers, ids);
    std::copy_n(scores->log_probs.begin() + r * top_k, num_teachers, log_probs);
    int64_t size = num_teachers;
    for (int64_t j = r * num_candidates; j < (r + 1) * num_candidates; ++j) {
      const int32_t id = rollout.top_ids[j];
      if (std::find(ids, ids + num_teachers, id) != ids + num_teachers) continue;
      ids[size] = id;
      log_probs[size] = scores->candidate_log_probs[j];
      ++size;
    }
  }
  scores->ids = std::move(ids_Rk);
  scores->log_probs = std::move(log_probs_Rk);
  scores->log_tail = std::move(scores->candidate_log_tail);
}

// The teacher's vocabulary may be larger: padding (Qwen2.5's heads have 151936 or 152064 rows for
// the same tokens), which the student cannot say. What the teacher gives such an id belongs to its
// tail.
absl::Status MoveBeyondVocabularyToTail(const SupportOptions& options, TeacherScores* scores) {
  const int64_t k = options.teacher_top_k;
  const auto num_rows = static_cast<int64_t>(scores->log_tail.size());
  for (int64_t r = 0; r < num_rows; ++r) {
    int32_t* const ids = scores->ids.data() + r * k;
    float* const log_probs = scores->log_probs.data() + r * k;
    int64_t num_kept = 0;
    for (int64_t j = 0; j < k; ++j) {
      if (ids[j] < options.vocab_size) {
        ids[num_kept] = ids[j];
        log_probs[num_kept++] = log_probs[j];
        continue;
      }
      // A tail that is not there (NaN) is made later from what the support leaves.
      scores->log_tail[r] = LogAddExp(scores->log_tail[r], log_probs[j]);
      if (!scores->candidate_log_tail.empty()) {
        scores->candidate_log_tail[r] = LogAddExp(scores->candidate_log_tail[r], log_probs[j]);
      }
      ++scores->num_beyond_vocabulary;
    }
    if (k > 0 && num_kept == 0) {
      return FailedPrecondition("all of the teacher's ", k,
                                " most probable tokens are beyond the student's vocabulary of ",
                                options.vocab_size, ", such as ", ids[0]);
    }
    std::fill(ids + num_kept, ids + k, -1);
    std::fill(log_probs + num_kept, log_probs + k, kMinusInf);
  }
  return absl::OkStatus();
}

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

TeacherRequest MakeTeacherRequest(const SupportOptions& options, const Rollout& rollout,
                                  std::string request_id) {
  TeacherRequest request;
  request.request_id = std::move(request_id);
  request.token_ids = rollout.prompt_ids;
  request.token_ids.insert(request.token_ids.end(), rollout.response_ids.begin(),
                           rollout.response_ids.end());
  request.score_start = static_cast<int64_t>(rollout.prompt_ids.size());
  request.top_k = options.teacher_top_k;
  request.temperature = options.temperature;
  request.entropy = options.teacher_entropy;
  request.dense = options.kind == SupportKind::kFullVocabulary;
  request.num_candidates = options.student_top_k;
  if (options.student_top_k > 0) request.candidate_ids = rollout.top_ids;
  return request;
}

absl::Status ReduceToSupport(const SupportOptions& options, const Rollout& rollout,
                             TeacherScores* scores) {
  TAOPD_RETURN_IF_ERROR(CheckSizes(options, rollout.response_ids.size(), *scores));
  TAOPD_RETURN_IF_ERROR(MoveBeyondVocabularyToTail(options, scores));
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
