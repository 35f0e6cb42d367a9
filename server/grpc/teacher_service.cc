#include "server/grpc/teacher_service.h"

#include <utility>
#include <vector>

#include "common/wire/teacher_protocol.h"
#include "server/grpc/generate/generate_call.h"
#include "server/grpc/score_call.h"
#include "server/grpc/score_conversion.h"

namespace taopd {

grpc::ServerUnaryReactor* TeacherService::GetTeacherInfo(grpc::CallbackServerContext* context,
                                                         const v1::GetTeacherInfoRequest* request,
                                                         v1::GetTeacherInfoResponse* response) {
  const absl::Time started_at = state_->clock()->Now();
  const auto model = state_->Admit();
  if (model.ok()) *response = ToTeacherInfo(**model);
  metrics_->RecordRequest("grpc/GetTeacherInfo", StatusCodeName(model.status()),
                          state_->clock()->Now() - started_at, PeerAddress(context->peer()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(model.status()));
  return reactor;
}

grpc::ServerUnaryReactor* TeacherService::Score(grpc::CallbackServerContext* context,
                                                const v1::ScoreRequest* request,
                                                v1::ScoreResponse* response) {
  auto* call =
      new ScoreCall(context, response, state_, metrics_, &tracker_);  // deletes itself in OnDone
  call->Start(*request);
  return call;
}

grpc::ServerBidiReactor<v1::ScoreRequest, v1::ScoreStreamResponse>* TeacherService::ScoreStream(
    grpc::CallbackServerContext* context) {
  tracker_.Begin();
  auto stream = std::make_shared<taopd::ScoreStream>(
      *context, state_, metrics_, [this](taopd::ScoreStream* done) { ForgetStream(done); });
  bool draining;
  {
    absl::MutexLock lock(&mutex_);
    streams_.emplace(stream.get(), stream);
    draining = draining_;
  }
  if (draining) {
    stream->Drain();
  } else {
    stream->Start();
  }
  return stream.get();
}

grpc::ServerWriteReactor<v1::GenerateResponse>* TeacherService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  return BeginGenerate(context, *request, {"grpc/Generate", request->request_id().substr(0, kMaxRequestIdBytes),
                                            state_, metrics_, &tracker_});
}

void TeacherService::ForgetStream(taopd::ScoreStream* stream) {
  std::shared_ptr<taopd::ScoreStream> last;  // destroyed outside of the lock
  {
    absl::MutexLock lock(&mutex_);
    auto node = streams_.extract(stream);
    last = std::move(node.mapped());
  }
  last.reset();
  tracker_.End();
}

void TeacherService::DrainStreams() {
  std::vector<std::shared_ptr<taopd::ScoreStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    for (const auto& [key, stream] : streams_) streams.push_back(stream);
  }
  for (const auto& stream : streams) stream->Drain();
}

}  // namespace taopd
