#include "server/grpc/score_call.h"

#include <utility>

#include "common/wire/teacher_protocol.h"
#include "server/grpc/score_admission.h"
#include "server/grpc/score_conversion.h"

namespace taopd {

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
  request_id_ = request.request_id().substr(0, kMaxRequestIdBytes);
  if (const absl::Status status = Submit(request); !status.ok()) FinishWith(status);
}

absl::Status ScoreCall::Submit(const v1::ScoreRequest& request) {
  TAOPD_ASSIGN_OR_RETURN(AdmittedScore admitted,
                         AdmitScore(request, DeadlineOf(*context_), *state_));
  model_ = std::move(admitted.model);
  answer_memory_ = std::move(admitted.answer_memory);
  admitted.request.client = PeerAddress(context_->peer());
  handle_ = model_->engine->Submit(
      std::move(admitted.request),
      [this, request_id = request.request_id()](absl::StatusOr<InferenceResult> result) {
        if (result.ok()) *response_ = ToScoreResponse(request_id, model_->revision, *result->score);
        FinishWith(result.status());
      });
  return absl::OkStatus();
}

void ScoreCall::FinishWith(const absl::Status& status) {
  code_ = StatusCodeName(status);
  AddRetryPushback(status, context_);
  Finish(ToGrpcStatus(status));
}

void ScoreCall::OnCancel() {
  if (handle_ != 0) model_->engine->Cancel(handle_);
}

void ScoreCall::OnDone() {
  metrics_->RecordRequest("grpc/Score", code_, state_->clock()->Now() - started_at_,
                          PeerAddress(context_->peer()), request_id_);
  CallTracker* const tracker = tracker_;
  delete this;
  tracker->End();
}

}  // namespace taopd
