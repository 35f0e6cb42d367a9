#include "tests/integration/teacher/load/soak_clients.h"

#include <functional>
#include <iterator>
#include <regex>
#include <vector>

#include "common/base/status.h"
#include "proto/vllm/engine.grpc.pb.h"
#include "tests/server/http/hostile_requests.h"
#include "tests/support/raw_sockets.h"

namespace taopd::testing {
namespace {

// The vocabulary of tests/compat/tiny_model.py without the special tokens.
constexpr uint64_t kVocabSize = 272;
constexpr int kActsOfAConnection = 200;
constexpr uint64_t kNumSequences = 24;  // number of sequences per length
constexpr int kLongest = 220;

nlohmann::json Ids(const v1::ScoreRequest& sequence) {
  return std::vector<uint32_t>(sequence.token_ids().begin(), sequence.token_ids().end());
}

nlohmann::json Body(const v1::ScoreRequest& sequence, int max_tokens) {
  return {{"prompt", Ids(sequence)},
          {"max_tokens", max_tokens},
          {"temperature", 0},
          {"ignore_eos", true},
          {"stream", true}};
}

nlohmann::json ChatBody(RandomStream* random) {
  const std::string text(1 + random->NextBelow(12) * 5, "the and"[random->NextBelow(7)]);
  return {{"messages", {{{"role", "user"}, {"content", text}}}},
          {"max_tokens", 1 + random->NextBelow(3) * 6},
          {"temperature", random->NextBelow(2)},
          {"seed", 3},
          {"logprobs", true}};
}

// Joins the events of a stream to one answer, because the number of tokens per event varies.
std::string Joined(const std::string& stream) {
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n")) << stream;
  nlohmann::json joined;
  constexpr size_t kPrefix = std::string_view("data: ").size();
  for (size_t at = 0, end; (end = stream.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string event = stream.substr(at + kPrefix, end - at - kPrefix);
    if (event == "[DONE]") break;
    const nlohmann::json part = nlohmann::json::parse(event);
    if (part.contains("usage")) joined["usage"] = part["usage"];
    EXPECT_FALSE(part.contains("error")) << event;
    for (const nlohmann::json& choice : part.value("choices", nlohmann::json::array())) {
      nlohmann::json& whole = joined["choices"][std::to_string(choice["index"].get<int>())];
      if (whole.is_null()) whole = {{"text", ""}};
      const nlohmann::json& text = choice.contains("delta") ? choice["delta"] : choice;
      const char* const name = choice.contains("delta") ? "content" : "text";
      whole["text"] = whole["text"].get<std::string>() + text.value(name, "");
      if (!choice["finish_reason"].is_null()) whole["finish_reason"] = choice["finish_reason"];
      if (!choice.contains("logprobs") || choice["logprobs"].is_null()) continue;
      for (const nlohmann::json& token : choice["logprobs"]["content"])
        whole["logprobs"].push_back(token);
    }
  }
  return joined.dump();
}

// Removes names and times, which differ between any two answers.
std::string WithoutNames(const std::string& answer) {
  static const std::regex* const names =
      new std::regex(R"re("(id|request_id)":"[^"]*"|"created":[0-9]+)re");
  return std::regex_replace(answer, *names, "");
}

}  // namespace

void FirstAnswers::Compare(const std::string& request, const std::string& answer) {
  const size_t hash = std::hash<std::string>()(answer);
  absl::MutexLock lock(&mutex_);
  const auto [first, is_new] = answers_.emplace(request, hash);
  EXPECT_EQ(first->second, hash) << "another answer than the first to " << request.substr(0, 300);
  num_compared_ += is_new ? 0 : 1;
}

SoakClient::SoakClient(const TeacherProcess& teacher, FirstAnswers* answers, uint64_t seed)
    : teacher_(teacher), first_answers_(answers), random_(seed) {
  Reconnect();
}

void SoakClient::Reconnect() {
  channel_ = NewChannel(teacher_);
  stub_ = v1::Teacher::NewStub(channel_);
  http_ = std::make_unique<httplib::Client>("127.0.0.1", teacher_.http_port());
  http_->set_keep_alive(true);
  http_->set_read_timeout(60);
}

v1::ScoreRequest SoakClient::Sequence(int most_tokens) {
  RandomStream drawn(static_cast<uint64_t>(most_tokens), "sequence",
                     {random_.NextBelow(kNumSequences)});
  v1::ScoreRequest request;
  const uint64_t num = 2 + drawn.NextBelow(static_cast<uint64_t>(most_tokens - 1));
  for (uint64_t t = 0; t < num; ++t)
    request.add_token_ids(static_cast<uint32_t>(drawn.NextBelow(kVocabSize)));
  request.set_score_start(1);
  request.set_top_k(static_cast<uint32_t>(drawn.NextBelow(33)));
  return request;
}

void SoakClient::Ask(const std::string& path, const nlohmann::json& body) {
  const std::string text = body.dump();
  const auto answer = http_->Post(path, text, "application/json");
  ASSERT_TRUE(answer) << path << ": " << httplib::to_string(answer.error());
  ASSERT_EQ(answer->status, 200) << path << ": " << answer->body;
  const bool streams = answer->body.starts_with("data: ");
  first_answers_->Compare(path + text, streams ? Joined(answer->body) : WithoutNames(answer->body));
}

void SoakClient::Act() {
  using Doing = void (SoakClient::*)();
  static constexpr Doing kActs[] = {&SoakClient::Score,
                                    &SoakClient::ScoreOnAStream,
                                    &SoakClient::StreamTokens,
                                    &SoakClient::CancelAScore,
                                    &SoakClient::CancelAStream,
                                    &SoakClient::StreamCompletion,
                                    &SoakClient::Complete,
                                    &SoakClient::CompleteMany,
                                    &SoakClient::Chat,
                                    &SoakClient::Tokenize,
                                    &SoakClient::MissADeadline,
                                    &SoakClient::SendWhatIsRefused,
                                    &SoakClient::AskThroughTheGateway,
                                    &SoakClient::SendHalfARequest,
                                    &SoakClient::BreakACompletion};
  if (++num_acts_ % kActsOfAConnection == 0) Reconnect();
  (this->*kActs[random_.NextBelow(std::size(kActs))])();
}

void SoakClient::Score() {
  const v1::ScoreRequest request = Sequence(kLongest);
  v1::ScoreResponse response;
  grpc::ClientContext context;
  ASSERT_OK(stub_->Score(&context, request, &response));
  EXPECT_EQ(response.sampled_logprobs_size(), request.token_ids_size() - 1);
  first_answers_->Compare("Score" + request.SerializeAsString(), response.SerializeAsString());
}

void SoakClient::ScoreOnAStream() {
  grpc::ClientContext context;
  const auto stream = stub_->ScoreStream(&context);
  const int num = 1 + static_cast<int>(random_.NextBelow(8));
  std::vector<v1::ScoreRequest> requests;  // may be answered in any order
  for (int i = 0; i < num; ++i) {
    requests.push_back(Sequence(kLongest));
    v1::ScoreRequest request = requests.back();
    request.set_request_id(std::to_string(i));
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  v1::ScoreStreamResponse answer;
  int num_read = 0;
  while (stream->Read(&answer)) {
    ++num_read;
    ASSERT_TRUE(answer.has_response()) << answer.error().message();
    const v1::ScoreRequest& request = requests.at(std::stoul(answer.request_id()));
    answer.mutable_response()->clear_request_id();
    // A stream gives the same scores as Score.
    first_answers_->Compare("Score" + request.SerializeAsString(),
                            answer.response().SerializeAsString());
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(num_read, num);
}

void SoakClient::StreamTokens() {
  v1::GenerateRequest request;
  *request.mutable_token_ids() = Sequence(50).token_ids();
  request.set_n(1 + static_cast<uint32_t>(random_.NextBelow(4)));
  request.set_max_new_tokens(1 + static_cast<uint32_t>(8 * random_.NextBelow(4)));
  request.set_seed(5);
  request.set_ignore_eos(true);
  request.set_stream_tokens(true);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse message;
  uint32_t num_tokens = 0;
  // The messages of the sequences may alternate in any order.
  std::vector<std::string> sequences(request.n());
  while (reader->Read(&message)) {
    num_tokens += static_cast<uint32_t>(message.token_ids_size());
    sequences.at(message.index()) += message.SerializeAsString();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(num_tokens, request.n() * request.max_new_tokens());
  std::string all;
  for (const std::string& sequence : sequences) all += sequence;
  first_answers_->Compare("Generate" + request.SerializeAsString(), all);
}

void SoakClient::StreamCompletion() { Ask("/v1/completions", Body(Sequence(50), 16)); }

void SoakClient::Complete() {
  nlohmann::json body = Body(Sequence(kLongest), 8);
  body["stream"] = false;
  body["logprobs"] = 2;
  body["prompt_logprobs"] = random_.NextBelow(6);
  Ask("/v1/completions", body);
}

// Sends and receives some hundreds of kilobytes.
void SoakClient::CompleteMany() {
  nlohmann::json body = Body(Sequence(kLongest), 1);
  const nlohmann::json prompt = body["prompt"];
  body["prompt"] = std::vector<nlohmann::json>(32, prompt);
  body["stream"] = false;
  body["prompt_logprobs"] = 1;
  Ask("/v1/completions", body);
}

void SoakClient::Chat() {
  nlohmann::json body = ChatBody(&random_);
  if (random_.NextBelow(2) == 0)
    body.update({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  Ask("/v1/chat/completions", body);
}

void SoakClient::Tokenize() {
  Ask("/tokenize", {{"prompt", std::string(random_.NextBelow(50), 'a')}});
  Ask("/detokenize", {{"tokens", Ids(Sequence(50))}});
}

// Expects an answer in time, or 504.
void SoakClient::MissADeadline() {
  nlohmann::json body = Body(Sequence(50), 150);
  body["stream"] = false;
  const std::string seconds = Concat("0.0", 1 + random_.NextBelow(50));
  const auto answer = http_->Post("/v1/completions", {{"X-Request-Timeout", seconds}}, body.dump(),
                                  "application/json");
  ASSERT_TRUE(answer);
  if (answer->status == 200) {
    first_answers_->Compare("in time" + body.dump(), WithoutNames(answer->body));
    return;
  }
  EXPECT_EQ(answer->status, 504) << answer->body;
}

// Disconnects after the first bytes of the answer.
void SoakClient::BreakACompletion() {
  RawClient client(teacher_.http_port());
  ASSERT_TRUE(client.Send(WholePost(Body(Sequence(50), 64).dump())));
  if (random_.NextBelow(2) == 0) client.ReadUntil("data:");
}

void SoakClient::CancelAScore() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(random_.NextBelow(10)));
  v1::ScoreResponse response;
  const grpc::Status status = stub_->Score(&context, Sequence(kLongest), &response);
  EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
      << status.error_message();
}

void SoakClient::CancelAStream() {
  grpc::ClientContext context;
  const auto stream = stub_->ScoreStream(&context);
  for (int i = 0; i < 6; ++i) stream->Write(Sequence(kLongest));
  v1::ScoreStreamResponse answer;
  if (random_.NextBelow(2) == 0) stream->Read(&answer);
  context.TryCancel();
  while (stream->Read(&answer)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// Half of the answers are aborted by their id after the first message.
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
}

// Sends nonsense, and requests over the limits of the context and of the number of prompts.
void SoakClient::SendWhatIsRefused() {
  v1::ScoreRequest nonsense = Sequence(20), too_long = Sequence(20);
  nonsense.set_top_k(100'000);
  for (int t = 0; t < 5000; ++t) too_long.add_token_ids(1);
  for (const v1::ScoreRequest& request : {nonsense, too_long}) {
    v1::ScoreResponse response;
    grpc::ClientContext context;
    EXPECT_ERROR(stub_->Score(&context, request, &response), kInvalidArgument, "");
  }
  std::vector<std::string> bodies = {"", "{", "[1,2", R"({"prompt":[-1]})",
                                     R"({"prompt":"a","n":0})"};
  bodies.push_back(nlohmann::json{{"prompt", std::vector<int>(100'000, 1)}}.dump());
  bodies.push_back(nlohmann::json{{"prompt", std::vector<nlohmann::json>(2000, {1})}}.dump());
  for (const std::string& body : bodies) {
    const auto answer = http_->Post("/v1/completions", body, "application/json");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 400) << body.substr(0, 40) << ": " << answer->body;
  }
  const auto answer = http_->Get("/no/such/route");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 404);
}

void SoakClient::SendHalfARequest() {
  RawClient client(random_.NextBelow(2) == 0 ? teacher_.http_port() : teacher_.grpc_port());
  const std::string request = WholePost(Body(Sequence(50), 4).dump());
  client.Send(request.substr(0, random_.NextBelow(request.size())));
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
