// Tests of the real taopd-teacher on a real model: its numbers, its limits and its shutdown.
#include <grpcpp/grpcpp.h>
#include <httplib.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/engine/request_validation.h"
#include "common/wire/teacher_protocol.h"
#include "proto/taopd/v1/teacher.grpc.pb.h"
#include "tests/integration/teacher/teacher_binary_fixture.h"
#include "tests/server/http/raw_client.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kVocab = 512;
// The tolerance between an fp32 and a float64 forward pass over 200 positions.
constexpr double kFloat64Tolerance = 1e-4;
// The tolerance between two protocols with the same fp32 logits.
constexpr double kProtocolTolerance = 1e-5;
// The tolerance of an fp32 sum of 512 probabilities.
constexpr double kSumTolerance = 1e-5;

using TeacherBinaryTest = TeacherBinaryFixture;

TEST_F(TeacherBinaryTest, ScoresMatchAnIndependentFloat64Forward) {
  Start();
  const Golden golden = LoadGolden();
  v1::ScoreRequest request = MakeRequest(golden.ids, 1, 5);
  request.mutable_options()->set_rank(true);
  v1::ScoreResponse response;
  const grpc::Status status = Score(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const int num_rows = static_cast<int>(golden.ids.size()) - 1;
  ASSERT_EQ(response.logprobs_size(), num_rows * 5);
  for (int r = 0; r < num_rows; ++r) {
    for (int j = 0; j < 5; ++j) {
      EXPECT_EQ(response.ids(r * 5 + j), golden.top5[r][j][0].get<uint32_t>()) << r;
      EXPECT_NEAR(response.logprobs(r * 5 + j), golden.top5[r][j][1].get<double>(),
                  kFloat64Tolerance)
          << r;
    }
    // The continuation is greedy, so each token is the most probable one.
    EXPECT_EQ(response.sampled_ranks(r), 1u) << r;
    EXPECT_EQ(response.sampled_logprobs(r), response.logprobs(r * 5)) << r;
  }
}

TEST_F(TeacherBinaryTest, FullDistributionSumsToOneAndTailsAreItsComplement) {
  Start();
  const Golden golden = LoadGolden();
  constexpr int kTopK = 7;
  v1::ScoreResponse full, cut;
  ASSERT_TRUE(Score(MakeRequest(golden.ids, 150, kVocab), &full).ok());
  ASSERT_TRUE(Score(MakeRequest(golden.ids, 150, kTopK), &cut).ok());
  for (int r = 0; r < cut.log_tail_size(); ++r) {
    double sum = 0, tail = 0;
    for (int j = 0; j < kVocab; ++j) {
      const double p = std::exp(double{full.logprobs(r * kVocab + j)});
      sum += p;
      if (j >= kTopK) tail += p;
    }
    EXPECT_NEAR(sum, 1.0, kSumTolerance);
    EXPECT_NEAR(cut.log_tail(r), std::log(tail), kFloat64Tolerance);
    EXPECT_EQ(full.log_tail(r), -std::numeric_limits<float>::infinity());
  }
}

TEST_F(TeacherBinaryTest, DenseRowsAndCandidatesAgreeWithTheFullTopK) {
  Start();
  const Golden golden = LoadGolden();
  constexpr int kTopK = 3, kCandidates = 4;
  v1::ScoreResponse full, answer;
  ASSERT_TRUE(Score(MakeRequest(golden.ids, 150, kVocab), &full).ok());
  v1::ScoreRequest request = MakeRequest(golden.ids, 150, kTopK);
  request.mutable_options()->set_dense(true);
  request.set_num_candidates(kCandidates);
  const int num_rows = full.log_tail_size();
  for (int r = 0; r < num_rows; ++r) {
    // One id of the top-k, two others, and one of those again.
    for (const uint32_t id : {full.ids(r * kVocab + 1), full.ids(r * kVocab + 5),
                              full.ids(r * kVocab + 9), full.ids(r * kVocab + 5)}) {
      request.add_candidate_ids(id);
    }
  }
  ASSERT_TRUE(Score(request, &answer).ok());
  ASSERT_EQ(answer.dense_logprobs_size(), num_rows * kVocab);
  ASSERT_EQ(answer.candidate_log_tail_size(), num_rows);
  for (int r = 0; r < num_rows; ++r) {
    double outside = 0;
    for (int j = 0; j < kVocab; ++j) {
      const float expected = full.logprobs(r * kVocab + j);
      const int id = static_cast<int>(full.ids(r * kVocab + j));
      EXPECT_NEAR(answer.dense_logprobs(r * kVocab + id), expected, kProtocolTolerance);
      if (j >= kTopK && j != 5 && j != 9) outside += std::exp(double{expected});
    }
    EXPECT_NEAR(answer.candidate_logprobs(r * kCandidates + 2), full.logprobs(r * kVocab + 9),
                kProtocolTolerance);
    EXPECT_NEAR(answer.candidate_log_tail(r), std::log(outside), kFloat64Tolerance);
  }
}

TEST_F(TeacherBinaryTest, DenseRowsOfALargeVocabularyAreRefused) {
  Start({"--max-dense-vocab-size", "511"});
  grpc::ClientContext context;
  v1::GetTeacherInfoResponse info;
  ASSERT_TRUE(stub_->GetTeacherInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.max_dense_vocab_size(), 511u);
  v1::ScoreRequest request = MakeRequest({1, 2, 3}, 1, 1);
  request.mutable_options()->set_dense(true);
  v1::ScoreResponse response;
  const grpc::Status status = Score(request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(),
              HasSubstr("vocabulary of 512 exceeds max_dense_vocab_size 511"));
}

TEST_F(TeacherBinaryTest, BothProtocolsSayTheSame) {
  Start();
  const Golden golden = LoadGolden();
  constexpr int kTopK = 8;
  std::vector<uint32_t> ids = golden.ids;
  for (size_t i = 5; i < ids.size(); i += 5)
    ids[i] = static_cast<uint32_t>((ids[i] * 31 + i) % kVocab);  // unlikely tokens
  v1::ScoreRequest request = MakeRequest(ids, 1, kTopK);
  request.mutable_options()->set_rank(true);
  v1::ScoreResponse response;
  ASSERT_TRUE(Score(request, &response).ok());
  const auto answer = Complete(
      {{"prompt", ids}, {"max_tokens", 1}, {"temperature", 0}, {"prompt_logprobs", kTopK}});
  ASSERT_EQ(answer->status, 200) << answer->body;
  const json rows = json::parse(answer->body)["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(rows.size(), ids.size());
  int num_outside = 0;
  for (size_t t = 1; t < ids.size(); ++t) {
    const int r = static_cast<int>(t) - 1;
    const json& actual = rows[t][std::to_string(ids[t])];
    EXPECT_NEAR(actual["logprob"].get<double>(), response.sampled_logprobs(r), kProtocolTolerance);
    for (int j = 0; j < kTopK; ++j) {
      const json& entry = rows[t][std::to_string(response.ids(r * kTopK + j))];
      EXPECT_NEAR(entry["logprob"].get<double>(), response.logprobs(r * kTopK + j),
                  kProtocolTolerance);
      EXPECT_EQ(entry["rank"], j + 1);
    }
    if (rows[t].size() == kTopK + 1) {
      ++num_outside;
      EXPECT_EQ(actual["rank"], response.sampled_ranks(r));
      EXPECT_GT(actual["rank"], kTopK);
    }
  }
  EXPECT_GT(num_outside, 0);
}

TEST_F(TeacherBinaryTest, GreedyCompletionIsTheGoldenContinuation) {
  Start();
  const Golden golden = LoadGolden();
  const auto answer = Complete({{"prompt", {1}},
                                {"max_tokens", 100},
                                {"temperature", 0},
                                {"logprobs", 5},
                                {"return_token_ids", true}});
  ASSERT_EQ(answer->status, 200) << answer->body;
  const json choice = json::parse(answer->body)["choices"][0];
  EXPECT_EQ(choice["token_ids"],
            json(std::vector<uint32_t>(golden.ids.begin() + 1, golden.ids.begin() + 101)));
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_NEAR(choice["logprobs"]["token_logprobs"][i].get<double>(),
                golden.top5[i][0][1].get<double>(), kFloat64Tolerance);
  }
}

TEST_F(TeacherBinaryTest, BadRequestsAreRefusedAndTheServerLives) {
  Start();
  v1::ScoreResponse response;
  EXPECT_EQ(Score(MakeRequest({1, 512}, 1, 1), &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Score(MakeRequest({1, 2}, 1, 513), &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Score(MakeRequest(std::vector<uint32_t>(513, 1), 1, 1), &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Score(MakeRequest(std::vector<uint32_t>(kMaxMessageBytes / 4 + 1, 1), 1, 1), &response)
                .error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::ScoreRequest cold = MakeRequest({1, 2}, 1, 1);
  cold.set_temperature(1e-45f);
  EXPECT_EQ(Score(cold, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  cold.set_temperature(kMinScoreTemperature);
  EXPECT_TRUE(Score(cold, &response).ok());
  EXPECT_EQ(Complete({{"prompt", "text"}})->status, 400);
  EXPECT_EQ(Complete({{"prompt", {512}}})->status, 400);
  EXPECT_EQ(http_->Post("/v1/completions", std::string(100000, '['), "application/json")->status,
            400);
  EXPECT_TRUE(Score(MakeRequest({1, 2}, 1, 1), &response).ok());
  EXPECT_EQ(http_->Get("/health")->status, 200);
  EXPECT_THAT(http_->Get("/metrics")->body,
              HasSubstr("taopd_teacher_requests_total{code=\"INVALID_ARGUMENT\""));
}

TEST_F(TeacherBinaryTest, FullQueueRefusesWithoutHarm) {
  Start({"--max-queued-tokens", "1200", "--max-num-seqs", "1"});
  const std::vector<uint32_t> ids(500, 7);
  grpc::ClientContext context;
  auto stream = stub_->ScoreStream(&context);
  std::thread writer([&] {
    for (int i = 0; i < 64; ++i) EXPECT_TRUE(stream->Write(MakeRequest(ids, 1, 1)));
    stream->WritesDone();
  });
  std::map<int, int> num_by_code;
  v1::ScoreStreamResponse response;
  while (stream->Read(&response)) ++num_by_code[response.has_error() ? response.error().code() : 0];
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_GT(num_by_code[grpc::StatusCode::OK], 0);
  EXPECT_GT(num_by_code[grpc::StatusCode::RESOURCE_EXHAUSTED], 0);
  EXPECT_EQ(num_by_code[grpc::StatusCode::OK] + num_by_code[grpc::StatusCode::RESOURCE_EXHAUSTED],
            64);
  v1::ScoreResponse after;
  EXPECT_TRUE(Score(MakeRequest(ids, 1, 1), &after).ok());
}

TEST_F(TeacherBinaryTest, DisconnectedClientsLeaveNothingBehind) {
  Start({"--max-num-seqs", "1"});
  const std::vector<uint32_t> ids(500, 7);
  {
    grpc::ClientContext context;
    auto stream = stub_->ScoreStream(&context);
    for (int i = 0; i < 32; ++i) ASSERT_TRUE(stream->Write(MakeRequest(ids, 1, 64)));
    context.TryCancel();
    stream->Finish();
  }
  for (int i = 0; i < 8; ++i) {
    const std::string body =
        json({{"prompt", ids}, {"prompt_logprobs", 64}, {"max_tokens", 1}}).dump();
    const std::string request =
        "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body.substr(0, i % 2 == 0 ? body.size() : 10);
    EXPECT_TRUE(RawClient(teacher_->http_port()).Send(request));
  }
  v1::ScoreResponse response;
  EXPECT_TRUE(Score(MakeRequest({1, 2}, 1, 1), &response).ok());
  EXPECT_EQ(teacher_->Terminate(), 0) << teacher_->Errors();
}

TEST_F(TeacherBinaryTest, SigtermDrainsAndExitsZero) {
  Start();
  const std::vector<uint32_t> ids(500, 7);
  grpc::ClientContext context;
  auto stream = stub_->ScoreStream(&context);
  for (int i = 0; i < 16; ++i) {
    v1::ScoreRequest request = MakeRequest(ids, 1, 16);
    request.set_request_id(std::to_string(i));
    ASSERT_TRUE(stream->Write(request));
  }
  v1::ScoreStreamResponse response;
  ASSERT_TRUE(stream->Read(&response));  // the stream is being served
  ::kill(teacher_->pid(), SIGTERM);
  int num_answers = 1;
  while (stream->Read(&response)) {
    ++num_answers;
    if (response.has_error()) {
      EXPECT_EQ(response.error().code(), grpc::StatusCode::UNAVAILABLE);
    }
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LE(num_answers, 16);
  EXPECT_EQ(teacher_->WaitForExit(), 0) << teacher_->Errors();
  EXPECT_THAT(teacher_->Errors(), HasSubstr("draining signal=15"));
}

TEST_F(TeacherBinaryTest, PrintsBothPortsInOneLine) {
  Start();
  EXPECT_EQ(teacher_->Output(),
            "listening http=127.0.0.1:" + std::to_string(teacher_->http_port()) +
                " grpc=127.0.0.1:" + std::to_string(teacher_->grpc_port()) + "\n");
}

TEST_F(TeacherBinaryTest, SecondServerOnAPortIsRefused) {
  Start();
  for (const bool http : {true, false}) {
    const std::string port = std::to_string(http ? teacher_->http_port() : teacher_->grpc_port());
    TeacherProcess second({"--model", StoriesModel(), http ? "--port" : "--grpc-port", port});
    EXPECT_EQ(second.WaitForExit(), 69);
    EXPECT_THAT(second.Errors(), HasSubstr(port));
    EXPECT_EQ(second.Output(), "");
  }
  EXPECT_TRUE(teacher_->Alive());
  v1::ScoreResponse response;
  EXPECT_TRUE(Score(MakeRequest({1, 2}, 1, 1), &response).ok());
}

TEST(TeacherExitTest, BadFlagsAre64) {
  EXPECT_EQ(TeacherProcess({}).WaitForExit(), 64);
  TeacherProcess unknown({"--model", StoriesModel(), "--max-logprob", "4"});
  EXPECT_EQ(unknown.WaitForExit(), 64);
  EXPECT_THAT(unknown.Errors(), HasSubstr("--max-logprobs"));
}

// The variables are those in the manual of GNU libgomp; /proc shows the environment with which a
// program was started.
TEST(TeacherThreadsTest, WaitShortlyUnlessTheEnvironmentSaysHow) {
  const auto environment_of = [](const TeacherProcess& teacher) {
    return ReadFile("/proc/" + std::to_string(teacher.pid()) + "/environ");
  };
  ASSERT_EQ(std::getenv("OMP_WAIT_POLICY"), nullptr) << "this test sets it";
  unsetenv("GOMP_SPINCOUNT");
  // The limit of descriptors lets a shell start it.
  constexpr int kDescriptors = 256;
  TeacherProcess by_default({"--model", StoriesModel(), "--num-threads", "1"}, kDescriptors);
  ASSERT_TRUE(by_default.WaitUntilReady()) << by_default.Errors();
  EXPECT_THAT(environment_of(by_default), HasSubstr("GOMP_SPINCOUNT=1000"));

  setenv("OMP_WAIT_POLICY", "active", 1);
  TeacherProcess by_choice({"--model", StoriesModel(), "--num-threads", "1"}, kDescriptors);
  unsetenv("OMP_WAIT_POLICY");
  ASSERT_TRUE(by_choice.WaitUntilReady()) << by_choice.Errors();
  EXPECT_THAT(environment_of(by_choice), Not(HasSubstr("GOMP_SPINCOUNT")));
}

TEST(TeacherExitTest, BadModelFilesAre65AndNamed) {
  TempDir dir;
  {
    TeacherProcess missing({"--model", dir.File("nothing")});
    EXPECT_EQ(missing.WaitForExit(), 65);
    EXPECT_THAT(missing.Errors(), HasSubstr(dir.File("nothing")));
  }
  const std::string config = ReadFile(StoriesModel() + "/config.json");
  const std::string weights = ReadFile(StoriesModel() + "/model.safetensors");
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {"{\"architectures\":", weights, "config.json"},
      {config, weights.substr(0, weights.size() / 2), "model.safetensors"},
      {config, std::string(64, '\xff'), "model.safetensors"},
  };
  for (const auto& [config_text, weight_bytes, named] : cases) {
    WriteFile(dir.File("config.json"), config_text);
    WriteFile(dir.File("model.safetensors"), weight_bytes);
    TeacherProcess corrupt({"--model", dir.path()});
    EXPECT_EQ(corrupt.WaitForExit(), 65) << corrupt.Errors();
    EXPECT_THAT(corrupt.Errors(), HasSubstr(named));
  }
}

}  // namespace
}  // namespace taopd::testing
