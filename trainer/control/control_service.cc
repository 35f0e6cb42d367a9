#include "trainer/control/control_service.h"

#include "trainer/control/bearer_token.h"

namespace taopd {
namespace {

v1::TrainerState ToProto(TrainerPhase phase) {
  switch (phase) {
    case TrainerPhase::kStarting:
      return v1::TRAINER_STATE_STARTING;
    case TrainerPhase::kRunning:
      return v1::TRAINER_STATE_RUNNING;
    case TrainerPhase::kPaused:
      return v1::TRAINER_STATE_PAUSED;
    case TrainerPhase::kWaitingForTeacher:
      return v1::TRAINER_STATE_WAITING_FOR_TEACHER;
    case TrainerPhase::kWaitingForStorage:
      return v1::TRAINER_STATE_WAITING_FOR_STORAGE;
    case TrainerPhase::kEvaluating:
      return v1::TRAINER_STATE_EVALUATING;
    case TrainerPhase::kSaving:
      return v1::TRAINER_STATE_SAVING;
    case TrainerPhase::kStopping:
      return v1::TRAINER_STATE_STOPPING;
    case TrainerPhase::kFinished:
      return v1::TRAINER_STATE_FINISHED;
  }
  return v1::TRAINER_STATE_UNSPECIFIED;
}

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const grpc::Status& status = grpc::Status::OK) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context) {
  return Answer(context, {grpc::StatusCode::UNAUTHENTICATED,
                          "the metadata lacks the run's token: authorization: Bearer TOKEN"});
}

// One waiting SaveCheckpoint. Finished once: RunState either calls back or confirms the
// cancellation.
class SaveReactor final : public grpc::ServerUnaryReactor {
 public:
  SaveReactor(RunState* state, v1::SaveCheckpointResponse* reply) : state_(state) {
    // gRPC calls OnCancel and OnDone only after this constructor, also when this calls back at
    // once.
    id_ = state->RequestSave([this, reply](const absl::StatusOr<std::string>& path) {
      if (path.ok()) reply->set_path(*path);
      Finish(ToGrpc(path.status()));
    });
  }
  // Also when the call's deadline passes, and when the server shuts down.
  void OnCancel() override {
    if (state_->CancelSave(id_)) Finish({grpc::StatusCode::CANCELLED, "cancelled"});
  }
  void OnDone() override { delete this; }

 private:
  RunState* const state_;
  uint64_t id_;
};

}  // namespace

bool ControlService::IsAllowed(const grpc::CallbackServerContext& context) const {
  if (token_.empty()) return true;
  const auto found = context.client_metadata().find("authorization");
  return found != context.client_metadata().end() &&
         IsBearerOf({found->second.data(), found->second.size()}, token_);
}

grpc::ServerUnaryReactor* ControlService::GetStatus(grpc::CallbackServerContext* context,
                                                    const v1::GetStatusRequest* request,
                                                    v1::GetStatusResponse* reply) {
  const RunStatus status = state_->status();
  reply->set_run_name(status.run_name);
  reply->set_state(ToProto(status.phase));
  reply->set_step(static_cast<uint64_t>(status.step));
  reply->set_total_steps(static_cast<uint64_t>(status.total_steps));
  for (const auto& [name, value] : status.metrics) (*reply->mutable_metrics())[name] = value;
  reply->set_last_checkpoint(status.last_checkpoint);
  reply->set_eta_seconds(status.eta_seconds);
  return Answer(context);
}

grpc::ServerUnaryReactor* ControlService::Pause(grpc::CallbackServerContext* context,
                                                const v1::PauseRequest* request,
                                                v1::PauseResponse* reply) {
  if (!IsAllowed(*context)) return Refuse(context);
  state_->RequestPause(true);
  return Answer(context);
}

grpc::ServerUnaryReactor* ControlService::Resume(grpc::CallbackServerContext* context,
                                                 const v1::ResumeRequest* request,
                                                 v1::ResumeResponse* reply) {
  if (!IsAllowed(*context)) return Refuse(context);
  state_->RequestPause(false);
  return Answer(context);
}

grpc::ServerUnaryReactor* ControlService::SaveCheckpoint(grpc::CallbackServerContext* context,
                                                         const v1::SaveCheckpointRequest* request,
                                                         v1::SaveCheckpointResponse* reply) {
  if (!IsAllowed(*context)) return Refuse(context);
  return new SaveReactor(state_, reply);
}

grpc::ServerUnaryReactor* ControlService::Stop(grpc::CallbackServerContext* context,
                                               const v1::StopRequest* request,
                                               v1::StopResponse* reply) {
  if (!IsAllowed(*context)) return Refuse(context);
  state_->RequestStop(kExitStoppedByUser);
  return Answer(context);
}

}  // namespace taopd
