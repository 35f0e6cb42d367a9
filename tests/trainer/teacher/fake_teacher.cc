#include "tests/trainer/teacher/fake_teacher.h"

#include <gtest/gtest.h>

#include "common/wire/teacher_protocol.h"
#include "tests/trainer/teacher/example_scores.h"

namespace taopd::testing {

v1::ScoreResponse RightReply(const v1::ScoreRequest& proto, const TeacherInfo& info) {
  TeacherRequest request;
  request.token_ids.assign(proto.token_ids().begin(), proto.token_ids().end());
  request.score_start = proto.score_start();
  request.top_k = static_cast<int32_t>(proto.top_k());
  request.entropy = proto.options().entropy();
  request.dense = proto.options().dense();
  request.num_candidates = static_cast<int32_t>(proto.num_candidates());
  request.candidate_ids.assign(proto.candidate_ids().begin(), proto.candidate_ids().end());
  const TeacherScores scores = ExampleScores(request, info);
  v1::ScoreResponse reply;
  reply.set_request_id(proto.request_id());
  reply.set_revision(info.revision);
  reply.set_top_k(proto.top_k());
  reply.mutable_ids()->Add(scores.ids.begin(), scores.ids.end());
  reply.mutable_logprobs()->Add(scores.log_probs.begin(), scores.log_probs.end());
  reply.mutable_log_tail()->Add(scores.log_tail.begin(), scores.log_tail.end());
  reply.mutable_sampled_logprobs()->Add(scores.sampled_log_probs.begin(),
                                        scores.sampled_log_probs.end());
  reply.mutable_entropy()->Add(scores.entropy.begin(), scores.entropy.end());
  reply.mutable_candidate_logprobs()->Add(scores.candidate_log_probs.begin(),
                                          scores.candidate_log_probs.end());
  reply.mutable_candidate_log_tail()->Add(scores.candidate_log_tail.begin(),
                                          scores.candidate_log_tail.end());
  reply.mutable_dense_logprobs()->Add(scores.dense_log_probs.begin(), scores.dense_log_probs.end());
  return reply;
}

FakeTeacher::FakeTeacher() {
  const TeacherInfo example = ExampleInfo();
  info.set_model_name(example.model_name);
  info.set_revision(example.revision);
  info.set_head_vocab_size(static_cast<uint32_t>(example.head_vocab_size));
  info.set_max_model_len(static_cast<uint32_t>(example.max_model_len));
  info.set_max_top_k(static_cast<uint32_t>(example.max_top_k));
  info.set_max_candidates(static_cast<uint32_t>(example.max_candidates));
  info.set_max_dense_vocab_size(static_cast<uint32_t>(example.max_dense_vocab_size));
  for (const uint32_t id : {7, 9}) info.add_eos_token_ids(id);
  info.set_protocol_version(kTeacherProtocolVersion);
}

void FakeTeacher::Start(int port, std::shared_ptr<grpc::ServerCredentials> credentials) {
  ASSERT_EQ(server_, nullptr);
  grpc::ServerBuilder builder;
  if (credentials == nullptr) credentials = grpc::InsecureServerCredentials();
  builder.AddListeningPort("127.0.0.1:" + std::to_string(port), credentials, &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  ASSERT_NE(server_, nullptr);
  ASSERT_NE(port_, 0);
}

void FakeTeacher::Stop() {
  if (server_ == nullptr) return;
  const auto refuse = [](const FakeCall& call) {
    call.finish({grpc::StatusCode::UNAVAILABLE, "stopped"});
  };
  SetHandler(refuse);
  for (const FakeCall& call : TakeHeld(0)) refuse(call);
  server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
  SetHandler(nullptr);
}

void FakeTeacher::SetHandler(Handler handler) {
  absl::MutexLock lock(&mutex_);
  handler_ = std::move(handler);
}

void FakeTeacher::Hold() {
  SetHandler([this](FakeCall call) {
    absl::MutexLock lock(&mutex_);
    held_.push_back(std::move(call));
  });
}

std::vector<FakeCall> FakeTeacher::TakeHeld(size_t count) {
  absl::MutexLock lock(&mutex_);
  auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return held_.size() >= count; };
  mutex_.Await(absl::Condition(&enough));
  return std::exchange(held_, {});
}

void FakeTeacher::AnswerRight(const FakeCall& call) {
  TeacherInfo served = ExampleInfo();
  served.revision = info.revision();
  *call.reply = RightReply(*call.request, served);
  call.finish(grpc::Status::OK);
}

int64_t FakeTeacher::num_calls() const {
  absl::MutexLock lock(&mutex_);
  return num_calls_;
}

grpc::ServerUnaryReactor* FakeTeacher::GetTeacherInfo(grpc::CallbackServerContext* context,
                                                      const v1::GetTeacherInfoRequest* request,
                                                      v1::GetTeacherInfoResponse* reply) {
  *reply = info;
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* FakeTeacher::Score(grpc::CallbackServerContext* context,
                                             const v1::ScoreRequest* request,
                                             v1::ScoreResponse* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Handler handler;
  {
    absl::MutexLock lock(&mutex_);
    ++num_calls_;
    handler = handler_;
  }
  const FakeCall call{request, reply, context,
                      [reactor](grpc::Status status) { reactor->Finish(std::move(status)); }};
  if (handler) {
    handler(call);
  } else {
    AnswerRight(call);
  }
  return reactor;
}

TeacherClientOptions FastOptions(const std::vector<const FakeTeacher*>& teachers) {
  TeacherClientOptions options;
  for (const FakeTeacher* teacher : teachers) options.endpoints.push_back(teacher->endpoint());
  options.initial_backoff = absl::Milliseconds(2);
  options.max_backoff = absl::Milliseconds(20);
  options.outage_budget = absl::Seconds(30);
  return options;
}

}  // namespace taopd::testing
