#include "server/app/canary_runner.h"

#include <utility>

#include "common/base/log.h"

namespace taopd {

bool CanaryRunner::Begin(std::shared_ptr<const ServedModel> model) {
  model_ = std::move(model);
  asked_.reset();
  doubted_ = false;
  canary_.emplace(model_->limits, /*bitwise=*/model_->device == "cpu", model_->dtype);
  if (!canary_->CanProbe()) {
    LogWarning("no canary: nothing can be scored",
               {{"max_model_len", model_->limits.max_model_len}});
    canary_.reset();
  }
  return canary_.has_value();
}

void CanaryRunner::Follow(const std::shared_ptr<const ServedModel>& model) {
  if (model == nullptr || model_ == nullptr || model == model_ || !canary_) return;
  if (Begin(model) && interval_ > absl::ZeroDuration()) next_at_ = state_->clock()->Now();
}

absl::Status CanaryRunner::RunAtStart(std::shared_ptr<const ServedModel> model,
                                      absl::Duration stall_timeout) {
  if (!Begin(std::move(model))) return absl::OkStatus();
  for (int run = 0; run < 2; ++run) TAOPD_RETURN_IF_ERROR(AskAndJudge(stall_timeout));
  if (doubted_) TAOPD_RETURN_IF_ERROR(AskAndJudge(stall_timeout));
  if (interval_ > absl::ZeroDuration()) next_at_ = state_->clock()->Now() + interval_;
  return absl::OkStatus();
}

absl::Status CanaryRunner::AskAndJudge(absl::Duration stall_timeout) {
  Ask();
  absl::Time heartbeat = model_->engine->stats().last_step;
  std::optional<absl::StatusOr<InferenceResult>> answer;
  while (!(answer = TakeAnswer(stall_timeout))) {
    const absl::Time before = std::exchange(heartbeat, model_->engine->stats().last_step);
    if (heartbeat != before) continue;
    return Internal("the engine has made no step for the stall_timeout of ",
                    absl::ToDoubleSeconds(stall_timeout), " s while the canary was scored");
  }
  asked_.reset();
  // Nothing else competes at the start: an engine that cannot score this will score nothing.
  if (!answer->ok() && !absl::IsInternal(answer->status())) return answer->status();
  Judge(*answer);
  return absl::OkStatus();
}

std::optional<absl::StatusOr<InferenceResult>> CanaryRunner::TakeAnswer(absl::Duration timeout) {
  absl::MutexLock lock(&asked_->mutex);
  const auto has_arrived = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(asked_->mutex) {
    return asked_->answer.has_value();
  };
  asked_->mutex.AwaitWithTimeout(absl::Condition(&has_arrived), timeout);
  return std::exchange(asked_->answer, std::nullopt);
}

void CanaryRunner::Tick() {
  if (!canary_) return;
  if (asked_ != nullptr) {
    const auto answer = TakeAnswer(absl::ZeroDuration());
    if (!answer) return;
    asked_.reset();
    Judge(*answer);
    if (doubted_) Ask();
    return;
  }
  const absl::Time now = state_->clock()->Now();
  if (now < next_at_) return;
  next_at_ = now + interval_;
  Ask();
}

void CanaryRunner::Ask() {
  asked_ = std::make_shared<CanaryAnswer>();
  model_->engine->Submit(canary_->NextRequest(),
                         [asked = asked_](absl::StatusOr<InferenceResult> answer) {
                           absl::MutexLock lock(&asked->mutex);
                           asked->answer = std::move(answer);
                         });
}

void CanaryRunner::Judge(const absl::StatusOr<InferenceResult>& answer) {
  const std::optional<absl::Status> verdict = canary_->Judge(answer);
  if (!verdict) {
    LogInfo("the canary was not scored", {{"reason", std::string(answer.status().message())}});
    return;
  }
  const bool confirmed = std::exchange(doubted_, false) || !state_->canary().ok();
  if (!verdict->ok() && !confirmed) {
    doubted_ = true;
    LogWarning("canary: a wrong answer; scoring it again",
               {{"error", std::string(verdict->message())}});
    return;
  }
  if (verdict->ok() && confirmed && state_->canary().ok()) {
    state_->CountCanaryRecovery();
    LogWarning("the canary was wrong once; the second try was right");
  }
  if (!verdict->ok()) LogError("canary", {{"error", std::string(verdict->message())}});
  state_->SetCanary(*verdict);
}

}  // namespace taopd
