#include "trainer/teacher/engine_teacher_client.h"

#include <utility>

#include "trainer/teacher/verify_scores.h"

namespace taopd {
namespace {

InferenceRequest ToInferenceRequest(const TeacherRequest& request) {
  InferenceRequest inference;
  inference.request_id = request.request_id;
  inference.token_ids = request.token_ids;
  inference.score = ScoreParams{.start = request.score_start,
                                .top_k = request.top_k,
                                .temperature = request.temperature,
                                .entropy = request.entropy,
                                .dense = request.dense,
                                .num_candidates = request.num_candidates,
                                .candidate_ids = request.candidate_ids};
  return inference;
}

absl::StatusOr<TeacherScores> ToScores(absl::StatusOr<InferenceResult> result,
                                       const TeacherRequest& request, const TeacherInfo& info) {
  TAOPD_RETURN_IF_ERROR(result.status());
  ScoreRows& rows = *result->score;
  TeacherScores scores;
  scores.top_k = rows.top_k;
  scores.ids = std::move(rows.ids);
  scores.log_probs = std::move(rows.log_probs);
  scores.log_tail = std::move(rows.log_tail);
  scores.sampled_log_probs = std::move(rows.sampled_log_probs);
  scores.entropy = std::move(rows.entropy);
  scores.candidate_log_probs = std::move(rows.candidate_log_probs);
  scores.candidate_log_tail = std::move(rows.candidate_log_tail);
  scores.dense_log_probs = std::move(rows.dense_log_probs);
  scores.revision = info.revision;
  TAOPD_RETURN_IF_ERROR(VerifyTeacherScores(scores, request, info));
  return scores;
}

}  // namespace

EngineTeacherClient::EngineTeacherClient(std::function<absl::StatusOr<Started>()> start)
    : start_(std::move(start)) {}

EngineTeacherClient::~EngineTeacherClient() {
  std::shared_ptr<const Started> started;
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
    started = started_;
  }
  // Unfinished requests end soon; refused ones have ended already.
  if (started != nullptr) started->engine->Drain(absl::InfinitePast());
  absl::MutexLock lock(&mutex_);
  const auto is_idle = [this]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stats_.in_flight == 0; };
  mutex_.Await(absl::Condition(&is_idle));
}

absl::StatusOr<TeacherInfo> EngineTeacherClient::Connect(absl::Duration) {
  {
    absl::MutexLock lock(&mutex_);
    if (started_ != nullptr) return started_->info;
  }
  TAOPD_ASSIGN_OR_RETURN(Started made, start_());
  absl::MutexLock lock(&mutex_);
  started_ = std::make_shared<const Started>(std::move(made));
  return started_->info;
}

void EngineTeacherClient::Score(TeacherRequest request, Done done) {
  std::shared_ptr<const Started> started;
  absl::Status refusal;
  {
    absl::MutexLock lock(&mutex_);
    started = started_;
    ++stats_.requests;
    if (started == nullptr) refusal = FailedPrecondition("Score before Connect");
    if (is_stopping_) refusal = absl::CancelledError("the teacher client is closing");
    if (refusal.ok()) refusal = VerifyTeacherRequest(request, started->info);
    if (!refusal.ok()) ++stats_.failures;
    stats_.in_flight += refusal.ok() ? 1 : 0;
  }
  if (!refusal.ok()) return done(refusal);
  InferenceRequest inference = ToInferenceRequest(request);
  auto answer = [this, info = &started->info, request = std::move(request),
                 done = std::move(done)](absl::StatusOr<InferenceResult> result) {
    absl::StatusOr<TeacherScores> scores = ToScores(std::move(result), request, *info);
    {
      absl::MutexLock lock(&mutex_);
      if (is_stopping_ && absl::IsUnavailable(scores.status()))
        scores = absl::CancelledError("the teacher client is closing");
      stats_.failures += scores.ok() ? 0 : 1;
    }
    done(std::move(scores));
    // This comes last, because the destructor waits for it.
    absl::MutexLock lock(&mutex_);
    --stats_.in_flight;
  };
  started->engine->Submit(std::move(inference), std::move(answer));
}

TeacherClientStats EngineTeacherClient::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace taopd
