#include "server/serving/serving_state.h"

namespace taopd {

absl::Status ServingState::LifeCycleLocked() const {
  if (!failure_.ok()) return Unavailable("the model could not be loaded");
  if (draining_) return Unavailable("the server is draining");
  if (model_ == nullptr) return Unavailable("the model is loading");
  return absl::OkStatus();
}

absl::Status ServingState::CanaryLocked() const {
  return canary_.ok() ? absl::OkStatus() : Unavailable(canary_.message());
}

absl::StatusOr<std::shared_ptr<const ServedModel>> ServingState::Admit() const {
  absl::ReaderMutexLock lock(&mutex_);
  TAOPD_RETURN_IF_ERROR(LifeCycleLocked());
  TAOPD_RETURN_IF_ERROR(CanaryLocked());
  return model_;
}

absl::StatusOr<ByteBudget::Reservation> ServingState::ReserveAnswer(int64_t num_bytes,
                                                                    const std::string& client) {
  ByteBudget::Reservation memory = message_budget_.TryReserve(num_bytes, client);
  if (memory) return memory;
  // The reason may have changed meanwhile, but the advice is the same.
  const bool is_client_limit =
      message_budget_.Check(num_bytes, client) == ByteBudget::Refusal::kClientShare;
  return ResourceExhausted(
      is_client_limit ? "the client's requests and answers hold its max_client_memory_share of "
                      : "requests and answers hold ",
      "max_message_memory_bytes ", message_budget_.max_bytes(), "; try again later");
}

absl::Duration ServingState::HeartbeatAgeLocked() {
  if (model_ == nullptr) return absl::ZeroDuration();
  const EngineStats stats = model_->engine->stats();
  const absl::Time now = clock_->Now();
  if (stats.num_waiting + stats.num_running == 0) {
    seen_at_ = absl::InfinitePast();
    return absl::ZeroDuration();
  }
  if (seen_at_ == absl::InfinitePast() || stats.last_step != seen_step_) {
    seen_step_ = stats.last_step;
    seen_at_ = now;
  }
  return now - seen_at_;
}

absl::Status ServingState::Ready() {
  absl::MutexLock lock(&mutex_);
  TAOPD_RETURN_IF_ERROR(HealthLocked());
  if (leaving_) return Unavailable("the server is about to drain");
  if (!weights_damage_.ok()) {
    return Unavailable("the weights could not be replaced and must be set again: ",
                       weights_damage_.message());
  }
  return CanaryLocked();
}

absl::Status ServingState::HealthLocked() {
  TAOPD_RETURN_IF_ERROR(LifeCycleLocked());
  return AliveLocked();
}

absl::Status ServingState::AliveLocked() {
  if (!listeners_.ok()) return Unavailable(listeners_.message());
  if (model_ != nullptr && model_->engine->stats().device_failed)
    return Unavailable("the device no longer computes; the server must be started again");
  const absl::Duration age = HeartbeatAgeLocked();
  if (age > stall_timeout_) {
    return Unavailable("the engine has made no step for ", absl::ToInt64Seconds(age),
                       " s while work waits");
  }
  return absl::OkStatus();
}

}  // namespace taopd
