#include "server/grpc/score_call.h"

#include <utility>

#include "server/grpc/score_conversion.h"

namespace taopd {

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

absl::Status MessageMemoryExhausted(ServingState& state) {
  return ResourceExhausted("requests and answers hold max_message_memory_bytes ",
                           state.message_budget().max_bytes(), "; try again later");
}

ScoreCall::ScoreCall(grpc::CallbackServerContext* context, v1::ScoreResponse* response,
                     ServingState* state, ServerMetrics* metrics, CallTracker* tracker)
    : context_(context),
      response_(response),
      state_(state),
      metrics_(metrics),
      tracker_(tracker),
      started_at_(state->clock()->Now()) {
  tracker_->Begin();
}

void ScoreCall::Start(const v1::ScoreRequest& request) {
  if (const absl::Status status = Submit(request); !status.ok()) FinishWith(status);
}

absl::Status ScoreCall::Submit(const v1::ScoreRequest& request) {
  TAOPD_ASSIGN_OR_RETURN(model_, state_->Admit());
  TAOPD_ASSIGN_OR_RETURN(InferenceRequest converted,
                         ToInferenceRequest(request, *model_, DeadlineOf(*context_)));
  memory_ = state_->message_budget().TryReserve(AnswerMemoryBytes(request, model_->limits));
  if (!memory_) return MessageMemoryExhausted(*state_);
  const RequestHandle handle = model_->engine->Submit(
      std::move(converted),
      [this, request_id = request.request_id()](absl::StatusOr<InferenceResult> result) {
        if (result.ok()) *response_ = ToScoreResponse(request_id, model_->revision, *result->score);
        FinishWith(result.status());
      });
  bool cancelled;
  {
    absl::MutexLock lock(&mutex_);
    handle_ = handle;
    cancelled = cancelled_;
  }
  if (cancelled && handle != 0) model_->engine->Cancel(handle);
  return absl::OkStatus();
}

void ScoreCall::FinishWith(const absl::Status& status) {
  code_ = StatusCodeName(status);
  if (absl::IsResourceExhausted(status)) {
    context_->AddTrailingMetadata(kRetryPushbackKey, std::to_string(kRetryPushbackMs));
  }
  Finish(ToGrpcStatus(status));
}

void ScoreCall::OnCancel() {
  RequestHandle handle;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    handle = handle_;
  }
  if (handle != 0) model_->engine->Cancel(handle);
}

void ScoreCall::OnDone() {
  metrics_->RecordRequest("grpc/Score", code_, state_->clock()->Now() - started_at_);
  CallTracker* const tracker = tracker_;
  delete this;
  tracker->End();
}

}  // namespace taopd
