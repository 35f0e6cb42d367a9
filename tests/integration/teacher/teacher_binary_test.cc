// Tests of the real taopd-teacher on a real model: its numbers, its limits and its shutdown.
#include <nlohmann/json.hpp>

#include "tests/integration/teacher/teacher_binary_fixture.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

constexpr int kVocab = 512;
// The tolerance between an fp32 and a float64 forward pass over 200 positions.
constexpr double kFloat64Tolerance = 1e-4;
// The tolerance between two protocols with the same fp32 logits.
constexpr double kProtocolTolerance = 1e-5;

using TeacherBinaryTest = TeacherBinaryFixture;

TEST_F(TeacherBinaryTest, ScoresMatchAnIndependentFloat64Forward) {
  Start();
  const Golden golden = LoadGolden();
  v1::ScoreRequest request = MakeRequest(golden.ids, 1, 5);
  request.mutable_options()->set_rank(true);
  ASSERT_OK_AND_ASSIGN(const v1::ScoreResponse response, Score(request));
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

TEST_F(TeacherBinaryTest, BothProtocolsSayTheSame) {
  Start();
  const Golden golden = LoadGolden();
  constexpr int kTopK = 8;
  std::vector<uint32_t> ids = golden.ids;
  for (size_t i = 5; i < ids.size(); i += 5)
    ids[i] = static_cast<uint32_t>((ids[i] * 31 + i) % kVocab);  // unlikely tokens
  v1::ScoreRequest request = MakeRequest(ids, 1, kTopK);
  request.mutable_options()->set_rank(true);
  ASSERT_OK_AND_ASSIGN(const v1::ScoreResponse response, Score(request));
  const std::string answer = BodyOf(Complete(
      {{"prompt", ids}, {"max_tokens", 1}, {"temperature", 0}, {"prompt_logprobs", kTopK}}));
  const json rows = json::parse(answer)["choices"][0]["prompt_logprobs"];
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
  const std::string answer = BodyOf(Complete({{"prompt", {1}},
                                              {"max_tokens", 100},
                                              {"temperature", 0},
                                              {"logprobs", 5},
                                              {"return_token_ids", true}}));
  const json choice = json::parse(answer)["choices"][0];
  EXPECT_EQ(choice["token_ids"],
            json(std::vector<uint32_t>(golden.ids.begin() + 1, golden.ids.begin() + 101)));
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_NEAR(choice["logprobs"]["token_logprobs"][i].get<double>(),
                golden.top5[i][0][1].get<double>(), kFloat64Tolerance);
  }
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

TEST_F(TeacherBinaryTest, PrintsBothPortsOnWhichASecondServerIsRefused) {
  Start();
  EXPECT_EQ(teacher_->Output(),
            "listening http=127.0.0.1:" + std::to_string(teacher_->http_port()) +
                " grpc=127.0.0.1:" + std::to_string(teacher_->grpc_port()) + "\n");
  for (const bool http : {true, false}) {
    const std::string port = std::to_string(http ? teacher_->http_port() : teacher_->grpc_port());
    TeacherProcess second({"--model", StoriesModel(), http ? "--port" : "--grpc-port", port});
    EXPECT_EQ(second.WaitForExit(), 69);
    EXPECT_THAT(second.Errors(), HasSubstr(port));
    EXPECT_EQ(second.Output(), "");
  }
  EXPECT_TRUE(teacher_->Alive());
  EXPECT_OK(Score(MakeRequest({1, 2}, 1, 1)));
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
