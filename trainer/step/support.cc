#include "trainer/step/support.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "taopd/objective/log_math.h"
#include "taopd/objective/objective.h"

namespace taopd {
namespace {

absl::Status CheckSizes(const SupportOptions& options, size_t num_rows,
                        const TeacherScores& reply) {
  const auto top_k = static_cast<size_t>(options.teacher_top_k);
  const auto num_candidates = static_cast<size_t>(options.student_top_k);
  const bool dense = options.kind == SupportKind::kFullVocabulary;
  const bool fits =
      reply.sampled_log_probs.size() == num_rows && reply.log_tail.size() == num_rows &&
      reply.ids.size() == num_rows * top_k && reply.log_probs.size() == num_rows * top_k &&
      reply.candidate_log_probs.size() == num_rows * num_candidates &&
      reply.candidate_log_tail.size() == (num_candidates > 0 ? num_rows : 0) &&
      (!dense ||
       (num_rows > 0 && reply.dense_log_probs.size() % num_rows == 0 &&
        reply.dense_log_probs.size() / num_rows >= static_cast<size_t>(options.vocab_size)));
  if (fits) return absl::OkStatus();
  return DataLoss("got scores of ", reply.sampled_log_probs.size(), " rows for a response of ",
                  num_rows, " tokens");
}

// Puts the teacher's tokens at the start of row `row` of the support and returns their number. The
// teacher's vocabulary may be larger than the student's: Qwen2.5's heads have 151936 or 152064 rows
// for the same tokens. The student cannot produce the padding ids, so their probability goes to the
// tail.
absl::StatusOr<int64_t> AddTeacherTokens(const SupportOptions& options, const TeacherScores& reply,
                                         int64_t row, SupportScores* scores) {
  const int64_t top_k = options.teacher_top_k;
  const int32_t* reply_ids = reply.ids.data() + row * top_k;
  const float* reply_log_probs = reply.log_probs.data() + row * top_k;
  int32_t* ids = scores->ids.data() + row * scores->support_size;
  float* log_probs = scores->log_probs.data() + row * scores->support_size;
  int64_t num_taken = 0;
  for (int64_t j = 0; j < top_k; ++j) {
    if (reply_ids[j] < options.vocab_size) {
      ids[num_taken] = reply_ids[j];
      log_probs[num_taken++] = reply_log_probs[j];
      continue;
    }
    // An unknown tail (NaN) stays unknown; the head derives it from what the support leaves.
    scores->log_tail[row] = LogAddExp(scores->log_tail[row], reply_log_probs[j]);
    ++scores->num_beyond_vocabulary;
  }
  if (top_k > 0 && num_taken == 0) {
    return FailedPrecondition("all of the teacher's ", top_k,
                              " most probable tokens are beyond the student's vocabulary of ",
                              options.vocab_size, ", such as ", reply_ids[0]);
  }
  return num_taken;
}

// Puts the student's tokens after the `num_teacher_tokens` of the teacher, except those that are
// there already.
void AddStudentTokens(const SupportOptions& options, const Rollout& rollout,
                      const TeacherScores& reply, int64_t row, int64_t num_teacher_tokens,
                      SupportScores* scores) {
  int32_t* ids = scores->ids.data() + row * scores->support_size;
  float* log_probs = scores->log_probs.data() + row * scores->support_size;
  const int32_t* teacher_end = ids + num_teacher_tokens;
  int64_t size = num_teacher_tokens;
  const int64_t first = row * options.student_top_k;
  for (int64_t j = first; j < first + options.student_top_k; ++j) {
    if (std::find<const int32_t*>(ids, teacher_end, rollout.top_ids[j]) != teacher_end) {
      ++scores->num_shared;
      continue;
    }
    ids[size] = rollout.top_ids[j];
    log_probs[size++] = reply.candidate_log_probs[j];
  }
}

// Returns the first `vocab_size` numbers of each row.
std::vector<float> CutToVocabulary(int64_t vocab_size, int64_t num_rows, std::vector<float> dense) {
  const int64_t width = static_cast<int64_t>(dense.size()) / num_rows;
  if (width == vocab_size) return dense;
  for (int64_t r = 0; r < num_rows; ++r) {
    std::copy_n(dense.begin() + r * width, vocab_size, dense.begin() + r * vocab_size);
  }
  dense.resize(num_rows * vocab_size);
  return dense;
}

}  // namespace

SupportOptions MakeSupportOptions(const TrainConfig& config, int64_t vocab_size) {
  const uint32_t traits = TraitsOf(config.LossTerms());
  const bool has_teacher = config.teacher.kind != TeacherKind::kNone;
  const auto teacher_top_k = static_cast<int32_t>(has_teacher ? config.teacher.top_k : 0);
  const auto student_top_k = config.objective.student_top_k > 0
                                 ? static_cast<int32_t>(config.objective.student_top_k)
                                 : teacher_top_k;
  SupportOptions support;
  support.teacher_top_k = teacher_top_k;
  if (traits & kNeedsFullVocabulary) {
    support.kind = SupportKind::kFullVocabulary;
  } else if (config.objective.support == SupportChoice::kStudent) {
    support.kind = SupportKind::kStudent;
    support.teacher_top_k = 0;
    support.student_top_k = student_top_k;
  } else if (config.objective.support == SupportChoice::kUnion) {
    support.kind = SupportKind::kUnion;
    support.student_top_k = student_top_k;
  }
  support.teacher_entropy = (traits & kNeedsTeacherEntropy) != 0;
  support.teacher_temperature = static_cast<float>(config.teacher.temperature);
  support.vocab_size = vocab_size;
  return support;
}

TeacherRequest MakeTeacherRequest(const SupportOptions& options, const Rollout& rollout,
                                  std::string request_id,
                                  const std::vector<int32_t>& teacher_prompt_ids) {
  TeacherRequest request;
  request.request_id = std::move(request_id);
  request.token_ids = teacher_prompt_ids.empty() ? rollout.prompt_ids : teacher_prompt_ids;
  request.score_start = static_cast<int64_t>(request.token_ids.size());
  request.token_ids.insert(request.token_ids.end(), rollout.response_ids.begin(),
                           rollout.response_ids.end());
  request.top_k = options.teacher_top_k;
  request.temperature = options.teacher_temperature;
  request.entropy = options.teacher_entropy;
  request.dense = options.kind == SupportKind::kFullVocabulary;
  request.num_candidates = options.student_top_k;
  if (options.student_top_k > 0) request.candidate_ids = rollout.top_ids;
  request.source = rollout.source;
  return request;
}

absl::StatusOr<SupportScores> ReduceToSupport(const SupportOptions& options, const Rollout& rollout,
                                              TeacherScores reply) {
  TAOPD_RETURN_IF_ERROR(CheckSizes(options, rollout.response_ids.size(), reply));
  const auto num_rows = static_cast<int64_t>(rollout.response_ids.size());
  SupportScores scores;
  scores.support_size = int64_t{options.teacher_top_k} + options.student_top_k;
  scores.ids.assign(num_rows * scores.support_size, -1);
  scores.log_probs.assign(num_rows * scores.support_size, -std::numeric_limits<float>::infinity());
  scores.log_tail =
      std::move(options.student_top_k > 0 ? reply.candidate_log_tail : reply.log_tail);
  for (int64_t row = 0; row < num_rows; ++row) {
    TAOPD_ASSIGN_OR_RETURN(const int64_t num_teacher_tokens,
                           AddTeacherTokens(options, reply, row, &scores));
    AddStudentTokens(options, rollout, reply, row, num_teacher_tokens, &scores);
  }
  scores.sampled_log_probs = std::move(reply.sampled_log_probs);
  scores.entropy = std::move(reply.entropy);
  scores.weight = reply.weight;
  if (options.kind == SupportKind::kFullVocabulary) {
    scores.dense_log_probs =
        CutToVocabulary(options.vocab_size, num_rows, std::move(reply.dense_log_probs));
  }
  return scores;
}

ScoredRollout WithoutTeacher(Rollout rollout) {
  const size_t num_rows = rollout.response_ids.size();
  ScoredRollout scored;
  scored.scores.support_size = 1;
  scored.scores.ids = rollout.response_ids;
  scored.scores.log_probs.assign(num_rows, 0.0f);
  scored.scores.log_tail.assign(num_rows, -std::numeric_limits<float>::infinity());
  scored.scores.sampled_log_probs.assign(num_rows, 0.0f);
  scored.rollout = std::move(rollout);
  return scored;
}

}  // namespace taopd
