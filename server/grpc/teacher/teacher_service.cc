#include "server/grpc/teacher/teacher_service.h"

#include <utility>
#include <vector>

#include "server/grpc/calls/engine_calls.h"
#include "server/grpc/teacher/generate_call.h"
#include "server/grpc/teacher/score_admission.h"

namespace taopd {
namespace {

v1::GetTeacherInfoResponse ToTeacherInfo(const ServedModel& model) {
  v1::GetTeacherInfoResponse info;
  info.set_model_name(model.name);
  info.set_revision(model.revision);
  if (model.tokenizer != nullptr) {
    info.set_tokenizer_hash(model.tokenizer->hash());
    info.set_tokenizer_vocab_size(static_cast<uint32_t>(model.tokenizer->vocab_size()));
  }
  info.set_head_vocab_size(static_cast<uint32_t>(model.limits.vocab_size));
  info.set_max_model_len(static_cast<uint32_t>(model.limits.max_model_len));
  info.set_max_top_k(static_cast<uint32_t>(model.limits.max_logprobs));
  info.set_max_candidates(static_cast<uint32_t>(model.limits.max_candidates));
  info.set_max_dense_vocab_size(static_cast<uint32_t>(model.limits.max_dense_vocab_size));
  for (const int32_t id : model.eos_token_ids) info.add_eos_token_ids(static_cast<uint32_t>(id));
  info.set_dtype(model.dtype);
  info.set_supports_temperature(true);
  info.set_protocol_version(kTeacherProtocolVersion);
  return info;
}

}  // namespace

UnaryCall* TeacherService::GetTeacherInfo(CallContext* context, const CallBytes*,
                                          CallBytes* answer) {
  return DescribeModel<v1::GetTeacherInfoResponse>(
      services_, context, "grpc/GetTeacherInfo", answer,
      [&](const ServedModel& model, auto* response) { *response = ToTeacherInfo(model); });
}

UnaryCall* TeacherService::Score(CallContext* context, const CallBytes* request,
                                 CallBytes* answer) {
  const auto start = [&](const v1::ScoreRequest& score, v1::ScoreResponse* response,
                         const auto& end, EngineWork* work) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(AdmittedRequest admitted,
                           AdmitScore(score, CallerOf(services_, *context), *services_.state));
    EngineEvents events;
    events.on_result = [response, request_id = score.request_id(),
                        revision = admitted.model->revision](size_t,
                                                             const InferenceResult& result) {
      *response = ToScoreResponse(request_id, revision, *result.score);
    };
    events.on_end = end;
    work->Start(std::move(admitted), std::move(events), services_.delivery);
    return absl::OkStatus();
  };
  return BeginUnaryCall<v1::ScoreRequest, v1::ScoreResponse>(context, {services_, "grpc/Score"},
                                                             request, answer, start);
}

BidiCall* TeacherService::ScoreStream(CallContext* context) {
  tracker_.Begin();
  auto stream = std::make_shared<taopd::ScoreStream>(
      services_, CallerOf(services_, *context), AddressOf(services_, *context),
      [this](taopd::ScoreStream* done) { ForgetStream(done); });
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

StreamedCall* TeacherService::Generate(CallContext* context, const CallBytes* request) {
  return BeginGenerate(context, request, {services_, "grpc/Generate"});
}

void TeacherService::ForgetStream(taopd::ScoreStream* stream) {
  std::shared_ptr<taopd::ScoreStream> last;  // destroyed outside the lock
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
