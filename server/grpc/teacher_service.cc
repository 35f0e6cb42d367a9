#include "server/grpc/teacher_service.h"

#include <utility>
#include <vector>

#include "common/wire/teacher_protocol.h"
#include "server/grpc/generate/generate_call.h"
#include "server/grpc/score_call.h"
#include "server/grpc/score_conversion.h"

namespace taopd {
namespace {

// A stream that is refused before it begins. Deletes itself.
class RefusedStream final
    : public grpc::ServerBidiReactor<v1::ScoreRequest, v1::ScoreStreamResponse> {
 public:
  explicit RefusedStream(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

grpc::ServerUnaryReactor* RefuseCall(grpc::CallbackServerContext* context,
                                     const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();  // makes it anew each time
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* TeacherService::GetTeacherInfo(grpc::CallbackServerContext* context,
                                                         const v1::GetTeacherInfoRequest* request,
                                                         v1::GetTeacherInfoResponse* response) {
  const absl::Time started_at = services_.state->clock()->Now();
  if (const absl::Status key = CheckKey(services_, *context, "grpc/GetTeacherInfo"); !key.ok()) {
    return RefuseCall(context, key);
  }
  const auto model = services_.state->Admit();
  if (model.ok()) *response = ToTeacherInfo(**model);
  services_.metrics->RecordRequest("grpc/GetTeacherInfo", StatusCodeName(model.status()),
                          services_.state->clock()->Now() - started_at, PeerAddress(context->peer()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(model.status()));
  return reactor;
}

grpc::ServerUnaryReactor* TeacherService::Score(grpc::CallbackServerContext* context,
                                                const v1::ScoreRequest* request,
                                                v1::ScoreResponse* response) {
  if (const absl::Status key = CheckKey(services_, *context, "grpc/Score"); !key.ok()) {
    return RefuseCall(context, key);
  }
  auto* call =
      new ScoreCall(context, response, services_.state, services_.metrics, &tracker_);  // deletes itself in OnDone
  call->Start(*request);
  return call;
}

grpc::ServerBidiReactor<v1::ScoreRequest, v1::ScoreStreamResponse>* TeacherService::ScoreStream(
    grpc::CallbackServerContext* context) {
  if (const absl::Status key = CheckKey(services_, *context, "grpc/ScoreStream"); !key.ok()) {
    return new RefusedStream(key);
  }
  tracker_.Begin();
  auto stream = std::make_shared<taopd::ScoreStream>(
      *context, services_.state, services_.metrics, [this](taopd::ScoreStream* done) { ForgetStream(done); });
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
  return BeginGenerate(
      context, *request,
      {services_, "grpc/Generate", request->request_id().substr(0, kMaxRequestIdBytes)});
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
