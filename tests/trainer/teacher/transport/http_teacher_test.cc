// Teachers with the API of vLLM and of SGLang: what is asked, what is understood, what is refused.
#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"
#include "tests/trainer/teacher/fake_teacher.h"
#include "tests/trainer/teacher/transport/fake_http_teacher.h"
#include "trainer/teacher/transport/http_transport.h"

namespace taopd::testing {
namespace {

std::unique_ptr<TeacherClient> ConnectedTo(const TeacherClientOptions& options,
                                           TeacherInfo* info = nullptr) {
  auto client = MakeNetworkTeacherClient(options);
  EXPECT_OK(client);
  const auto answer = (*client)->Connect(absl::Seconds(20));
  EXPECT_OK(answer);
  if (info != nullptr && answer.ok()) *info = *answer;
  return *std::move(client);
}
TeacherInfo InfoOf(const TeacherClientOptions& options) {
  TeacherInfo info;
  ConnectedTo(options, &info);
  return info;
}
absl::Status ConnectError(const TeacherClientOptions& options,
                          absl::Duration timeout = absl::Seconds(20)) {
  auto client = MakeNetworkTeacherClient(options);
  EXPECT_OK(client);
  return (*client)->Connect(timeout).status();
}

class HttpTeacherTest : public ::testing::TestWithParam<HttpShape> {
 protected:
  FakeHttpTeacher teacher_{GetParam()};
};

TEST_P(HttpTeacherTest, SaysWhatIsKnown) {
  const TeacherInfo info = InfoOf(FastHttpOptions(teacher_));
  EXPECT_EQ(info.model_name, "example");
  EXPECT_EQ(info.revision, GetParam() == HttpShape::kSglang ? "example v7" : "example vllm-1-abc");
  EXPECT_EQ(info.max_model_len, 63);  // one token is generated
  EXPECT_EQ(info.max_top_k, 8);
  EXPECT_EQ(info.head_vocab_size, 0);
  EXPECT_FALSE(info.sends_tail);
  EXPECT_FALSE(info.supports_entropy);
  EXPECT_FALSE(info.supports_temperature);
  EXPECT_EQ(info.max_candidates, 0);
  EXPECT_EQ(info.max_dense_vocab_size, 0);
}

TEST_P(HttpTeacherTest, ScoresAreThoseOfTheTeacher) {
  auto client = ConnectedTo(FastHttpOptions(teacher_));
  for (const int32_t top_k : {0, 1, 4, 8}) {
    std::vector<TeacherRequest> requests;
    for (int i = 0; i < 20; ++i) requests.push_back(ExampleRequest(i, 12 + i, top_k));
    const auto answers = ScoreAll(client.get(), requests);
    for (int i = 0; i < 20; ++i) {
      ASSERT_OK(answers[i]);
      const TeacherScores expected = ExampleScores(requests[i], ExampleInfo());
      EXPECT_EQ(answers[i]->ids, expected.ids);
      EXPECT_EQ(answers[i]->log_probs, expected.log_probs);
      EXPECT_EQ(answers[i]->sampled_log_probs, expected.sampled_log_probs);
      ASSERT_EQ(answers[i]->log_tail.size(), expected.log_tail.size());
      for (const float tail : answers[i]->log_tail) EXPECT_TRUE(std::isnan(tail));
    }
  }
  const auto stats = client->stats();
  ASSERT_EQ(stats.endpoints.size(), 1u);
  // A server may close a kept connection just as it is used again; the request is then sent anew.
  EXPECT_EQ(stats.endpoints[0].attempts, 80u + stats.retries);
  EXPECT_GT(stats.endpoints[0].bytes_sent, 80u * 12);
  EXPECT_GT(stats.endpoints[0].bytes_received, stats.endpoints[0].bytes_sent);
  EXPECT_GT(stats.endpoints[0].latency, absl::ZeroDuration());
}

TEST_P(HttpTeacherTest, WhatSuchTeachersCannotDoIsRefusedByName) {
  auto client = ConnectedTo(FastHttpOptions(teacher_));
  const auto expect_refused = [&](auto change, const std::string& says) {
    TeacherRequest request = ExampleRequest(1);
    change(&request);
    EXPECT_ERROR(ScoreOne(client.get(), request), kInvalidArgument, says);
  };
  expect_refused([](auto* r) { r->temperature = 0.5f; }, "temperature 0.5");
  expect_refused([](auto* r) { r->entropy = true; }, "entropy");
  expect_refused([](auto* r) { r->dense = true; }, "dense");
  expect_refused([](auto* r) { r->num_candidates = 1; }, "num_candidates 1");
  expect_refused([](auto* r) { r->top_k = 9; }, "top_k 9");
  expect_refused([](auto* r) { r->token_ids.assign(64, 1); }, "max_model_len is 63");
}

// A run asks for this before its first step.
TEST_P(HttpTeacherTest, SizesThatNoReplyCanHaveAreKnownAtTheStart) {
  TeacherInfo info;
  auto client = ConnectedTo(FastHttpOptions(teacher_), &info);
  TeacherRequest longest = {.score_start = 1024, .top_k = 64};
  longest.token_ids.resize(16 << 10);
  EXPECT_OK(client->CheckSize(longest, info));
  longest.top_k = 512;
  EXPECT_ERROR(client->CheckSize(longest, info), kInvalidArgument,
               "bytes of JSON, above the limit of 536870912");
}

TEST_P(HttpTeacherTest, StrangeRepliesAreNotTrainedOn) {
  auto client = ConnectedTo(FastHttpOptions(teacher_));
  const auto expect_refused = [&](FakeHttpTeacher::Reply reply) {
    teacher_.SetReply(std::move(reply));
    EXPECT_ERROR(ScoreOne(client.get(), ExampleRequest(1)), kDataLoss, "teacher reply");
  };
  for (const char* body : {"", "{", "[]", "{}", "\xff\xfe", "{\"choices\":[]}",
                           "{\"choices\":[{\"prompt_logprobs\":[null]}]}", "{\"meta_info\":[]}",
                           "{\"meta_info\":{\"input_token_logprobs\":[null]}}"}) {
    expect_refused([body](const nlohmann::json&) { return body; });
  }
  // A number that is wrong: the reply of another sequence.
  expect_refused([this](nlohmann::json request) {
    auto& ids = request.contains("prompt") ? request["prompt"] : request["input_ids"];
    for (auto& id : ids) id = (id.get<int>() + 1) % 50;
    return teacher_.RightReply(request).dump();
  });
  // Probabilities that sum to more than 1.
  expect_refused([this](const nlohmann::json& request) {
    std::string reply = teacher_.RightReply(request).dump();
    for (size_t at = 0; (at = reply.find("-", at)) != std::string::npos; ++at) {
      if (std::isdigit(static_cast<unsigned char>(reply[at + 1]))) reply.replace(at, 2, "-0");
    }
    return reply;
  });
  teacher_.SetHandler(nullptr);
  EXPECT_OK(ScoreOne(client.get(), ExampleRequest(1)));
}

TEST_P(HttpTeacherTest, StatusesBecomeErrorsAndRetries) {
  TeacherClientOptions options = FastHttpOptions(teacher_);
  auto client = ConnectedTo(options);
  std::atomic<int> num_left = 0;
  std::atomic<int> status = 0;
  teacher_.SetHandler([&](const httplib::Request& request, httplib::Response& response) {
    if (num_left-- > 0) {
      response.status = status;
      response.set_content(R"({"error":{"message":"as told"}})", "application/json");
      return;
    }
    response.set_content(teacher_.RightReply(nlohmann::json::parse(request.body)).dump(),
                         "application/json");
  });
  for (const int passing : {408, 429, 500, 502, 503, 504}) {
    status = passing;
    num_left = 1;
    SCOPED_TRACE(passing);
    EXPECT_OK(ScoreOne(client.get(), ExampleRequest(1)));
  }
  EXPECT_EQ(client->stats().retries, 6u);
  for (const auto& [final, code] :
       {std::pair(400, kInvalidArgument), std::pair(401, kPermissionDenied),
        std::pair(404, kFailedPrecondition), std::pair(422, kInvalidArgument)}) {
    status = final;
    num_left = 1;
    EXPECT_ERROR(ScoreOne(client.get(), ExampleRequest(1)), code, "as told");
    EXPECT_EQ(num_left, 0);
  }
}

TEST_P(HttpTeacherTest, ALongRetryAfterIsShortened) {
  teacher_.SetHandler([](const httplib::Request&, httplib::Response& response) {
    response.status = 503;
    response.set_header("Retry-After", "86400");
  });
  const TeacherClientOptions options = FastHttpOptions(teacher_);
  HttpScoreTransport transport(*ParseTeacherEndpoints(options.endpoints), options);
  const TeacherRequest request = ExampleRequest(1);
  const TeacherInfo info = ExampleInfo();
  absl::Notification ended;
  transport.Start(0, request, info, absl::Seconds(20), [&](const auto& result) {
    EXPECT_EQ(result.pushback, absl::Seconds(60));
    ended.Notify();
  });
  ended.WaitForNotification();
}

// A server that sends a byte now and then is no reason to wait longer than for any other.
TEST_P(HttpTeacherTest, ATrickleIsCutAtTheTimeout) {
  TeacherClientOptions options = FastHttpOptions(teacher_);
  options.request_timeout = absl::Milliseconds(200);
  options.outage_budget = absl::Milliseconds(1);
  auto client = ConnectedTo(options);
  std::atomic<bool> is_over = false;
  teacher_.SetHandler([&](const httplib::Request&, httplib::Response& response) {
    response.set_chunked_content_provider("application/json", [&](size_t, httplib::DataSink& sink) {
      if (is_over) return false;
      absl::SleepFor(absl::Milliseconds(10));
      return sink.write(" ", 1);
    });
  });
  EXPECT_ERROR(ScoreOne(client.get(), ExampleRequest(1)), kUnavailable, "DEADLINE_EXCEEDED");
  is_over = true;
}

TEST_P(HttpTeacherTest, DestructionCancelsWhatIsInFlight) {
  auto client = ConnectedTo(FastHttpOptions(teacher_));
  absl::Notification begun;
  const auto over = std::make_shared<absl::Notification>();  // the handler outlives the test
  teacher_.SetHandler([&begun, over](const auto&, auto&) {
    begun.Notify();
    over->WaitForNotification();
  });
  absl::Status status;
  client->Score(ExampleRequest(1),
                [&](absl::StatusOr<TeacherScores> scores) { status = scores.status(); });
  begun.WaitForNotification();
  client.reset();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  over->Notify();
}

TEST_P(HttpTeacherTest, AnApiKeyIsSent) {
  teacher_.api_key = "secret";
  TeacherClientOptions options = FastHttpOptions(teacher_);
  EXPECT_ERROR(ConnectError(options), kPermissionDenied, "no API key was sent");
  options.api_key = "secret";
  EXPECT_OK(ScoreOne(ConnectedTo(options).get(), ExampleRequest(1)));
  options.api_key = "a b";
  EXPECT_ERROR(MakeNetworkTeacherClient(options), kInvalidArgument, "API key");
}

TEST_P(HttpTeacherTest, AModelIsChosenByName) {
  TeacherClientOptions options = FastHttpOptions(teacher_);
  options.model = "nothing";
  EXPECT_ERROR(ConnectError(options), kFailedPrecondition,
               "the server has no model \"nothing\"; it has \"example\", \"other\"");
  options.model = "other";
  EXPECT_EQ(InfoOf(options).model_name, "other");
}

// Two servers with one name and other weights.
TEST_P(HttpTeacherTest, TheCanaryTellsWeightsApart) {
  const auto connect = [](const FakeHttpTeacher& teacher) {
    return InfoOf(FastHttpOptions(teacher));
  };
  const TeacherInfo info = connect(teacher_);
  EXPECT_EQ(info.canary.size(), 16u);
  EXPECT_TRUE(info.has_stable_scores);
  EXPECT_EQ(info.Identity(), info.revision + " canary " + info.canary);
  FakeHttpTeacher same(GetParam()), rounded(GetParam()), other(GetParam());
  rounded.lowers_by = [](int) { return 1e-6f; };
  other.lowers_by = [](int) { return 0.02f; };
  EXPECT_EQ(connect(same).canary, info.canary);
  EXPECT_EQ(connect(rounded).canary, info.canary) << "sums in another order";
  EXPECT_NE(connect(other).canary, info.canary);
  EXPECT_EQ(connect(other).revision, info.revision);
  TeacherClientOptions fewer = FastHttpOptions(teacher_);
  fewer.probe_top_k = 1;
  EXPECT_EQ(InfoOf(fewer).canary, info.canary) << "the run has another teacher.top_k";
}

TEST_P(HttpTeacherTest, ScoresThatJumpHaveNoCanary) {
  FakeHttpTeacher teacher(GetParam());
  teacher.lowers_by = [](int num_replies) { return 0.0625f * static_cast<float>(num_replies % 5); };
  ::testing::internal::CaptureStderr();
  const TeacherInfo info = InfoOf(FastHttpOptions(teacher));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("scores are not cached"));
  EXPECT_FALSE(info.has_stable_scores);
  EXPECT_EQ(info.Identity(), info.revision);
}

std::string ShapeName(const ::testing::TestParamInfo<HttpShape>& shape) {
  const char* const names[] = {"VllmPython", "VllmRust", "Sglang"};
  return names[static_cast<int>(shape.param)];
}
INSTANTIATE_TEST_SUITE_P(Shapes, HttpTeacherTest,
                         ::testing::Values(HttpShape::kVllmPython, HttpShape::kVllmRust,
                                           HttpShape::kSglang),
                         ShapeName);

TEST(VllmTeacherTest, APortOfGrpcIsNamedAsThePossibleCause) {
  FakeTeacher grpc_teacher;
  grpc_teacher.Start();
  TeacherClientOptions options = FastHttpOptions(FakeHttpTeacher(HttpShape::kVllmPython));
  options.endpoints = {"vllm+http://127.0.0.1:" + std::to_string(grpc_teacher.port())};
  EXPECT_ERROR(ConnectError(options, absl::Seconds(1)), kUnavailable,
               "is this the server's HTTP port, not the one of gRPC");
  grpc_teacher.Stop();
  EXPECT_ERROR(ConnectError(options, absl::Seconds(1)), kUnavailable,
               "no connection: nothing listens there");
}

TEST(VllmTeacherTest, TheFlagOfALimitIsNamed) {
  FakeHttpTeacher teacher(HttpShape::kVllmPython);
  TeacherClientOptions options = FastHttpOptions(teacher);
  options.probe_top_k = 21;
  EXPECT_ERROR(ConnectError(options), kFailedPrecondition, "--max-logprobs 21");
}

TEST(VllmTeacherTest, AsksWithTokenIds) {
  FakeHttpTeacher teacher(HttpShape::kVllmPython);
  auto client = ConnectedTo(FastHttpOptions(teacher));
  const TeacherRequest request = ExampleRequest(1);
  ASSERT_OK(ScoreOne(client.get(), request));
  const auto sent = teacher.last_request();
  EXPECT_EQ(sent.at("model"), "example");
  EXPECT_EQ(sent.at("prompt").get<std::vector<int32_t>>(), request.token_ids);
  EXPECT_EQ(sent.at("max_tokens"), 1);
  EXPECT_EQ(sent.at("prompt_logprobs"), request.top_k);
  EXPECT_EQ(sent.at("return_tokens_as_token_ids"), true);
}

TEST(VllmTeacherTest, ZeroProbabilityAndAnotherFingerprint) {
  FakeHttpTeacher teacher(HttpShape::kVllmPython);
  auto client = ConnectedTo(FastHttpOptions(teacher));
  TeacherRequest request = ExampleRequest(1);
  teacher.SetReply([&](const nlohmann::json& sent) {
    auto reply = teacher.RightReply(sent);
    auto& position = reply["choices"][0]["prompt_logprobs"][5];
    position[std::to_string(request.token_ids[5])]["logprob"] = -9999.0;
    return reply.dump();
  });
  ASSERT_OK_AND_ASSIGN(const auto scores, ScoreOne(client.get(), request));
  EXPECT_EQ(scores.sampled_log_probs[5 - request.score_start],
            -std::numeric_limits<float>::infinity());
  teacher.SetReply([&](const nlohmann::json& sent) {
    auto reply = teacher.RightReply(sent);
    reply["system_fingerprint"] = "vllm-2-def";
    return reply.dump();
  });
  EXPECT_ERROR(ScoreOne(client.get(), request), kFailedPrecondition,
               "revision \"example vllm-2-def\" instead of \"example vllm-1-abc\"");
}

TEST(SglangTeacherTest, AsksFromTheFirstScoredToken) {
  FakeHttpTeacher teacher(HttpShape::kSglang);
  auto client = ConnectedTo(FastHttpOptions(teacher));
  const TeacherRequest request = ExampleRequest(1);
  ASSERT_OK(ScoreOne(client.get(), request));
  const auto sent = teacher.last_request();
  EXPECT_EQ(sent.at("input_ids").get<std::vector<int32_t>>(), request.token_ids);
  EXPECT_EQ(sent.at("logprob_start_len"), request.score_start - 1);
  EXPECT_EQ(sent.at("top_logprobs_num"), request.top_k);
  EXPECT_EQ(sent.at("return_logprob"), true);
  EXPECT_EQ(sent.at("sampling_params").at("max_new_tokens"), 0);
}

}  // namespace
}  // namespace taopd::testing
