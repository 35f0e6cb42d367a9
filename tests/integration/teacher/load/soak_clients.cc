#include "tests/integration/teacher/load/soak_clients.h"

#include <gmock/gmock.h>

#include <iterator>
#include <vector>

#include "common/base/status.h"
#include "proto/vllm/engine.grpc.pb.h"
#include "tests/server/http/raw_client.h"

namespace taopd::testing {
namespace {

constexpr uint64_t kVocabSize = 500;
constexpr int kActsOfAConnection = 200;

nlohmann::json Body(const v1::ScoreRequest& sequence, int max_tokens) {
  return {
      {"prompt", std::vector<uint32_t>(sequence.token_ids().begin(), sequence.token_ids().end())},
      {"max_tokens", max_tokens},
      {"ignore_eos", true},
      {"stream", true}};
}

std::string Post(const std::string& body) {
  return Concat("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n",
                "Content-Length: ", body.size(), "\r\n\r\n", body);
}

}  // namespace

SoakClient::SoakClient(const TeacherProcess& teacher, uint64_t seed)
    : teacher_(teacher), random_(seed) {
  Reconnect();
}

void SoakClient::Reconnect() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_ = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(teacher_.grpc_port()),
                                       grpc::InsecureChannelCredentials(), arguments);
  stub_ = v1::Teacher::NewStub(channel_);
  http_ = std::make_unique<httplib::Client>("127.0.0.1", teacher_.http_port());
  http_->set_keep_alive(true);
  http_->set_read_timeout(60);
}

v1::ScoreRequest SoakClient::Sequence(int most_tokens) {
  v1::ScoreRequest request;
  const int64_t num = 2 + random_.NextBelow(static_cast<uint64_t>(most_tokens - 1));
  for (int64_t t = 0; t < num; ++t)
    request.add_token_ids(static_cast<uint32_t>(1 + random_.NextBelow(kVocabSize)));
  request.set_score_start(1);
  request.set_top_k(static_cast<uint32_t>(random_.NextBelow(33)));
  return request;
}

void SoakClient::Act() {
  using Doing = void (SoakClient::*)();
  static constexpr Doing kActs[] = {&SoakClient::Score,
                                    &SoakClient::ScoreOnAStream,
                                    &SoakClient::StreamTokens,
                                    &SoakClient::CancelAScore,
                                    &SoakClient::CancelAStream,
                                    &SoakClient::StreamCompletion,
                                    &SoakClient::SendNonsense,
                                    &SoakClient::AskThroughTheGateway,
                                    &SoakClient::SendHalfARequest,
                                    &SoakClient::BreakACompletion};
  if (++counts_.num_acts % kActsOfAConnection == 0) Reconnect();
  (this->*kActs[random_.NextBelow(std::size(kActs))])();
}

void SoakClient::Score() {
  const v1::ScoreRequest request = Sequence(400);
  v1::ScoreResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->Score(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.sampled_logprobs_size(), request.token_ids_size() - 1);
  ++counts_.num_answers;
}

void SoakClient::ScoreOnAStream() {
  grpc::ClientContext context;
  const auto stream = stub_->ScoreStream(&context);
  const int num = 1 + static_cast<int>(random_.NextBelow(8));
  for (int i = 0; i < num; ++i) {
    v1::ScoreRequest request = Sequence(200);
    request.set_request_id(std::to_string(request.token_ids_size()));
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  v1::ScoreStreamResponse answer;
  int num_read = 0;
  while (stream->Read(&answer)) {
    ++num_read;
    EXPECT_EQ(answer.response().sampled_logprobs_size() + 1,
              std::stoi(answer.response().request_id()));
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(num_read, num);
  counts_.num_answers += num;
}

void SoakClient::StreamTokens() {
  v1::GenerateRequest request;
  *request.mutable_token_ids() = Sequence(50).token_ids();
  request.set_n(1 + static_cast<uint32_t>(random_.NextBelow(4)));
  request.set_max_new_tokens(1 + static_cast<uint32_t>(random_.NextBelow(32)));
  request.set_ignore_eos(true);
  request.set_stream_tokens(true);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse message;
  uint32_t num_tokens = 0;
  while (reader->Read(&message)) num_tokens += static_cast<uint32_t>(message.token_ids_size());
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(num_tokens, request.n() * request.max_new_tokens());
  ++counts_.num_answers;
}

void SoakClient::StreamCompletion() {
  const auto answer =
      http_->Post("/v1/completions", Body(Sequence(50), 16).dump(), "application/json");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_TRUE(answer->body.ends_with("data: [DONE]\n\n")) << answer->body;
  ++counts_.num_answers;
}

// Goes after the first bytes of the answer.
void SoakClient::BreakACompletion() {
  RawClient client(teacher_.http_port());
  ASSERT_TRUE(client.Send(Post(Body(Sequence(50), 64).dump())));
  if (random_.NextBelow(2) == 0) client.ReadUntil("data:");
  ++counts_.num_cancels;
}

void SoakClient::CancelAScore() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(random_.NextBelow(10)));
  v1::ScoreResponse response;
  const grpc::Status status = stub_->Score(&context, Sequence(400), &response);
  EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
      << status.error_message();
  ++counts_.num_cancels;
}

void SoakClient::CancelAStream() {
  grpc::ClientContext context;
  const auto stream = stub_->ScoreStream(&context);
  for (int i = 0; i < 6; ++i) stream->Write(Sequence(300));
  v1::ScoreStreamResponse answer;
  if (random_.NextBelow(2) == 0) stream->Read(&answer);
  context.TryCancel();
  while (stream->Read(&answer)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ++counts_.num_cancels;
}

// Half of the answers are ended by their id after the first message.
void SoakClient::AskThroughTheGateway() {
  const auto gateway = vllm::grpc::engine::VllmEngine::NewStub(channel_);
  vllm::grpc::engine::GenerateRequest request;
  const std::string id = std::to_string(random_.NextBelow(uint64_t{1} << 62));
  request.set_request_id(id);
  const v1::ScoreRequest prompt = Sequence(50);
  request.mutable_tokenized()->mutable_input_ids()->Add(prompt.token_ids().begin(),
                                                        prompt.token_ids().end());
  request.mutable_sampling_params()->set_max_tokens(24);
  request.mutable_sampling_params()->set_n(2);
  request.mutable_sampling_params()->set_ignore_eos(true);
  request.set_stream(true);
  const bool abort = random_.NextBelow(2) == 0;
  grpc::ClientContext context;
  const auto reader = gateway->Generate(&context, request);
  vllm::grpc::engine::GenerateResponse message;
  int num_complete = 0;
  for (bool first = true; reader->Read(&message); first = false) {
    num_complete += message.has_complete();
    if (!abort || !first) continue;
    vllm::grpc::engine::AbortRequest ids;
    ids.add_request_ids(id);
    vllm::grpc::engine::AbortResponse done;
    grpc::ClientContext aborting;
    EXPECT_TRUE(gateway->Abort(&aborting, ids, &done).ok());
  }
  const grpc::Status status = reader->Finish();
  const bool was_aborted = abort && status.error_code() == grpc::StatusCode::CANCELLED;
  EXPECT_TRUE(was_aborted || (status.ok() && num_complete == 2)) << status.error_message();
  was_aborted ? ++counts_.num_cancels : ++counts_.num_answers;
}

void SoakClient::SendNonsense() {
  v1::ScoreRequest request = Sequence(20);
  request.set_top_k(100'000);
  v1::ScoreResponse response;
  grpc::ClientContext context;
  EXPECT_EQ(stub_->Score(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  for (const char* body : {"", "{", "[1,2", "{\"prompt\":[-1]}", "{\"prompt\":\"a\",\"n\":0}"}) {
    const auto answer = http_->Post("/v1/completions", body, "application/json");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 400) << body;
  }
  const auto answer = http_->Get("/no/such/route");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 404);
  ++counts_.num_refused;
}

void SoakClient::SendHalfARequest() {
  RawClient client(random_.NextBelow(2) == 0 ? teacher_.http_port() : teacher_.grpc_port());
  const std::string request = Post(Body(Sequence(50), 4).dump());
  client.Send(request.substr(0, random_.NextBelow(request.size())));
  ++counts_.num_cancels;
}

std::string FixedScore(v1::Teacher::Stub* stub) {
  v1::ScoreRequest request;
  for (uint32_t id = 1; id < 200; ++id) request.add_token_ids(id);
  request.set_score_start(1);
  request.set_top_k(16);
  v1::ScoreResponse response;
  grpc::ClientContext context;
  EXPECT_TRUE(stub->Score(&context, request, &response).ok());
  return response.SerializeAsString();
}

}  // namespace taopd::testing
