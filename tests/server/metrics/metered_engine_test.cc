#include "server/metrics/metered_engine.h"

#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "server/metrics/server_metrics.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/support/stub_engine.h"

namespace taopd::testing {
namespace {

// Answers each request inside of Submit; the test's clock moves between the parts of an answer.
class SteppedEngine final : public StubEngine {
 public:
  explicit SteppedEngine(ManualClock* clock) : clock_(clock) {}

  RequestHandle SubmitOne(InferenceRequest request, InferenceDone done) override {
    clock_->Advance(absl::Seconds(1));  // waits
    if (!answer_.ok()) {
      done(answer_);
      return 0;
    }
    InferenceResult result = {.started_at = clock_->Now()};
    clock_->Advance(absl::Seconds(2));  // the prompt
    if (request.score) result.score.emplace();
    if (request.sampling) {
      result.generated.emplace();
      for (int i = 0; i < 3; ++i) {
        if (i > 0) clock_->Advance(absl::Seconds(4));
        result.generated->ids.push_back(i);
        request.on_token(*result.generated, i == 2);
      }
    }
    done(std::move(result));
    return 1;
  }

  void AnswerWith(absl::Status status) { answer_ = std::move(status); }

 private:
  ManualClock* const clock_;
  absl::Status answer_;
};

class MeteredEngineTest : public ::testing::Test {
 protected:
  MeteredEngineTest() {
    auto stepped = std::make_unique<SteppedEngine>(&clock_);
    stepped_ = stepped.get();
    engine_ = MakeMeteredEngine(std::move(stepped), &metrics_, &trace_, &clock_);
  }
  static InferenceRequest Generation() {
    return {.token_ids = {1, 2, 3, 4, 5}, .sampling = SamplingParams()};
  }
  absl::Status Run(InferenceRequest request) {
    absl::Status status = absl::UnknownError("no answer");
    RequestBatch batch;
    batch.emplace_back(std::move(request),
                       [&](absl::StatusOr<InferenceResult> result) { status = result.status(); });
    engine_->SubmitBatch(std::move(batch));
    return status;
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(registry_.Collect()); }
  // The sum of a histogram.
  static std::string Sum(const std::string& name, const std::string& value) {
    return name + "_sum{model_name=\"m\"} " + value + "\n";
  }

  ManualClock clock_;
  prometheus::Registry registry_;
  RequestMetrics metrics_{"m", &registry_};
  RequestTrace trace_{absl::UnixEpoch()};
  SteppedEngine* stepped_;
  std::unique_ptr<InferenceEngine> engine_;
};

TEST_F(MeteredEngineTest, TheTimesOfAGenerationAddUp) {
  int num_tokens = 0;
  InferenceRequest request = Generation();
  request.on_token = [&](const GeneratedTokens&, bool) { ++num_tokens; };
  ASSERT_OK(Run(std::move(request)));
  EXPECT_EQ(num_tokens, 3);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr(Sum("vllm:request_queue_time_seconds", "1")));
  EXPECT_THAT(text, HasSubstr(Sum("vllm:request_prefill_time_seconds", "2")));
  EXPECT_THAT(text, HasSubstr(Sum("vllm:time_to_first_token_seconds", "3")));
  EXPECT_THAT(text, HasSubstr(Sum("vllm:request_decode_time_seconds", "8")));
  EXPECT_THAT(text, HasSubstr(Sum("vllm:request_inference_time_seconds", "10")));
  EXPECT_THAT(text, HasSubstr(Sum("vllm:e2e_request_latency_seconds", "11")));
  EXPECT_THAT(text, HasSubstr(Sum("vllm:inter_token_latency_seconds", "8")));
  EXPECT_THAT(text, HasSubstr("vllm:inter_token_latency_seconds_count{model_name=\"m\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(Sum("vllm:request_time_per_output_token_seconds", "4")));
  EXPECT_THAT(text, HasSubstr(Sum("vllm:request_prompt_tokens", "5")));
  EXPECT_THAT(text, HasSubstr(Sum("vllm:request_generation_tokens", "3")));
  EXPECT_THAT(text, HasSubstr("vllm:request_success_total{finished_reason=\"length\","
                              "model_name=\"m\"} 1\n"));
}

// vLLM's buckets; a request counts once, however many sequences it asks for.
TEST_F(MeteredEngineTest, ARequestCountsItsChoicesOnce) {
  for (const int64_t num_choices : {1, 3, 0, 0}) {
    InferenceRequest request = Generation();
    request.num_choices = num_choices;
    ASSERT_OK(Run(std::move(request)));
  }
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr(Sum("vllm:request_params_n", "4")));
  EXPECT_THAT(text, HasSubstr("vllm:request_params_n_count{model_name=\"m\"} 2\n"));
  for (const char* bucket : {"1", "2", "5", "10", "20", "+Inf"}) {
    EXPECT_THAT(text, HasSubstr("vllm:request_params_n_bucket{model_name=\"m\",le=\"" +
                                std::string(bucket) + "\"}"));
  }
}

TEST_F(MeteredEngineTest, AScoreCountsApart) {
  InferenceRequest request = Generation();
  request.sampling.reset();
  request.score = ScoreParams();
  ASSERT_OK(Run(std::move(request)));
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr(Sum("taopd_teacher_score_seconds", "3")));
  EXPECT_THAT(text, HasSubstr("vllm:e2e_request_latency_seconds_count{model_name=\"m\"} 0\n"));
}

TEST_F(MeteredEngineTest, RefusalsAndFailuresHaveReasons) {
  const std::pair<absl::Status, std::string> cases[] = {
      {ResourceExhausted("x"),
       "taopd_teacher_refused_requests_total{model_name=\"m\","
       "reason=\"queue_full\"} 1\n"},
      {InvalidArgument("x"), "reason=\"invalid\"} 1\n"},
      {Unavailable("x"), "reason=\"unavailable\"} 1\n"},
      {absl::DeadlineExceededError("x"), "reason=\"deadline\"} 1\n"},
      {FailedPrecondition("x"), "reason=\"only_scores\"} 1\n"},
      {absl::CancelledError("x"), "finished_reason=\"abort\",model_name=\"m\"} 1\n"},
      {Internal("x"), "finished_reason=\"error\",model_name=\"m\"} 1\n"},
  };
  for (const auto& [status, line] : cases) {
    EXPECT_THAT(Text(), Not(HasSubstr(line)));
    stepped_->AnswerWith(status);
    EXPECT_EQ(Run(Generation()), status);
    EXPECT_THAT(Text(), HasSubstr(line));
  }
}

TEST_F(MeteredEngineTest, TheTraceHasTheStretchesOfASequence) {
  ASSERT_OK(Run(Generation()));
  const TempDir dir;
  ASSERT_OK(trace_.WriteTo(dir.File("trace.json")));
  const auto trace = nlohmann::json::parse(ReadFile(dir.File("trace.json")));
  const auto& events = trace["traceEvents"];
  ASSERT_EQ(events.size(), 3u);
  const char* names[] = {"waiting", "prompt", "tokens"};
  const double begins_us[] = {0, 1e6, 3e6}, durations_us[] = {1e6, 2e6, 8e6};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(events[i]["name"], names[i]);
    EXPECT_EQ(events[i]["ph"], "X");
    EXPECT_EQ(events[i]["ts"], begins_us[i]);
    EXPECT_EQ(events[i]["dur"], durations_us[i]);
    EXPECT_EQ(events[i]["tid"], 1);
  }
}

TEST(AccessLogTest, OneLineOfJsonPerRequest) {
  const TempDir dir;
  const std::string path = dir.File("access.jsonl");
  {
    ASSERT_OK_AND_ASSIGN(const auto log, AccessLog::Open(path));
    ServerMetrics metrics;
    metrics.SetAccessLog(log.get());
    metrics.RecordRequest("grpc/Score", "OK", absl::Milliseconds(250), "10.0.0.7", "r\n\xff\"");
    std::filesystem::rename(path, path + ".1");
    ASSERT_OK(log->Reopen());
    metrics.RecordRequest("GET /health", "200", absl::ZeroDuration());
    EXPECT_EQ(log->num_lost(), 0u);
  }
  const std::string first = ReadFile(path + ".1"), second = ReadFile(path);
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 1);
  const auto line = nlohmann::json::parse(first);
  EXPECT_EQ(line["client"], "10.0.0.7");
  EXPECT_EQ(line["request_id"], "r\n\xef\xbf\xbd\"");
  EXPECT_EQ(line["method"], "grpc/Score");
  EXPECT_EQ(line["code"], "OK");
  EXPECT_EQ(line["seconds"], 0.25);
  EXPECT_EQ(std::string(line["time"]).size(), 24u);
  EXPECT_EQ(nlohmann::json::parse(second)["method"], "GET /health");
  // A directory cannot be appended to.
  EXPECT_ERROR(AccessLog::Open(dir.File("")), kInvalidArgument, "access_log");
}

TEST(StepSizesTest, BoundsBelongToTheirBucket) {
  StepSizes sizes;
  for (int64_t tokens : {1, 2, 8, 9, 16384, 16385}) sizes.Add(tokens);
  EXPECT_EQ(sizes.counts.front(), 1u);
  EXPECT_EQ(sizes.counts[1], 2u);
  EXPECT_EQ(sizes.counts[2], 1u);
  EXPECT_EQ(sizes.counts[12], 1u);
  EXPECT_EQ(sizes.counts.back(), 1u);
  EXPECT_EQ(sizes.num_tokens, 1u + 2 + 8 + 9 + 16384 + 16385);
}

}  // namespace
}  // namespace taopd::testing
