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

void CanaryRunner::RunAtStart(std::shared_ptr<const ServedModel> model) {
  if (!Begin(std::move(model))) return;
  for (int run = 0; run < 2; ++run) AskAndJudge();
  if (doubted_) AskAndJudge();
  if (interval_ > absl::ZeroDuration()) next_at_ = state_->clock()->Now() + interval_;
}

void CanaryRunner::AskAndJudge() {
  Ask();
  std::optional<absl::StatusOr<InferenceResult>> answer;
  {
    absl::MutexLock lock(&asked_->mutex);
    const auto has_come = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(asked_->mutex) {
      return asked_->answer.has_value();
    };
    asked_->mutex.Await(absl::Condition(&has_come));
    answer = std::move(asked_->answer);
  }
  asked_.reset();
  Judge(*answer);
}

void CanaryRunner::Tick() {
  if (!canary_) return;
  if (asked_ != nullptr) {
    std::optional<absl::StatusOr<InferenceResult>> answer;
    {
      absl::MutexLock lock(&asked_->mutex);
      answer = std::exchange(asked_->answer, std::nullopt);
    }
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
  asked_ = std::make_shared<Inbox>();
  model_->engine->Submit(canary_->NextRequest(),
                         [inbox = asked_](absl::StatusOr<InferenceResult> answer) {
                           absl::MutexLock lock(&inbox->mutex);
                           inbox->answer = std::move(answer);
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
