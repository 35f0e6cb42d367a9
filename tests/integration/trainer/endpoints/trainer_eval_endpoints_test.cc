// Evaluations beside training whose responses come from servers (rollout.eval_endpoints): they are
// those of a trainer that generates them itself, whatever becomes of the servers.
#include <set>

#include "tests/integration/trainer/endpoints/rollout_servers.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

class TrainerEvalEndpointsTest : public TrainerEndpointsTest {
 protected:
  void SetUp() override {
    TrainerEndpointsTest::SetUp();
    WriteTokenizer();
    text_student_ = WriteTextStudent();
    std::string problems;
    for (int i = 0; i < 12; ++i)
      problems += Concat("{\"prompt\": \"Once upon ", i, "\", \"answer\": \"", i, "\"}\n");
    WriteFile(dir_.File("problems.jsonl"), problems);
  }
  void StartServer(Worker* worker) {
    worker->model_dir = text_student_;
    Start(worker);
  }
  std::vector<std::string> EvalSettings(const std::vector<std::string>& more = {}) {
    std::vector<std::string> settings = {"student.model=" + text_student_,
                                         "data.val=[" + dir_.File("problems.jsonl") + "]",
                                         "eval.measure=accuracy",
                                         "eval.mode=beside",
                                         "eval.num_prompts=12",
                                         "eval.n=4",
                                         "eval.max_response_length=40",
                                         "eval.num_samples=48"};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  // Returns the lines of evaluations in metrics.jsonl, without their time.
  std::vector<nlohmann::json> Evaluations(const std::string& run) {
    std::vector<nlohmann::json> evaluations;
    std::istringstream lines(ReadFile(dir_.File(run + "/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json row = nlohmann::json::parse(line);
      if (!row.contains("eval/n")) continue;
      row.erase("time");
      evaluations.push_back(std::move(row));
    }
    return evaluations;
  }
  // Returns the responses of the evaluations with their verdicts, sorted.
  std::multiset<std::string> Samples(const std::string& run) {
    std::multiset<std::string> samples;
    std::istringstream lines(ReadFile(dir_.File(run + "/samples.jsonl")));
    for (std::string line; std::getline(lines, line);) samples.insert(line);
    EXPECT_FALSE(samples.empty());
    return samples;
  }
  void ExpectSameEvaluations(const std::string& a, const std::string& b) {
    ExpectSameResult(a, b);
    EXPECT_EQ(Evaluations(a), Evaluations(b));
    EXPECT_EQ(Evaluations(a).size(), 4U) << "before, after 5 and 10 steps, and after the last";
    EXPECT_EQ(Samples(a), Samples(b));
    for (const std::string& run : {a, b})
      EXPECT_FALSE(std::filesystem::exists(dir_.File(run + "/weights-rank-0-eval")));
  }

  std::string text_student_;
};

TEST_F(TrainerEvalEndpointsTest, ServersEvaluateTheWeightsThatAreMeasured) {
  Worker server, rollouts;
  StartServer(&server);
  StartServer(&rollouts);
  const std::string servers = EndpointsOf({&server}, "rollout.eval_endpoints");
  ExpectTrains("own", EvalSettings());
  ExpectTrains("elsewhere", EvalSettings({servers}));
  ExpectSameEvaluations("own", "elsewhere");
  EXPECT_THAT(LogOf(server), HasSubstr("version=step-5-"));
  EXPECT_THAT(LogOf(server), ::testing::Not(HasSubstr("version=step-4-")))
      << "only measured weights are sent";
  // Beside servers of rollouts, and with weights that are sent.
  ExpectTrains("both",
               EvalSettings({servers, EndpointsOf({&rollouts}), "rollout.weight_transfer=stream"}));
  ExpectSameEvaluations("own", "both");
}

TEST_F(TrainerEvalEndpointsTest, AServerThatIsKilledAgainAndAgainChangesNothing) {
  Worker server;
  StartServer(&server);
  // Evaluations take longer than the steps.
  const std::vector<std::string> longer = {"eval.n=16", "eval.max_response_length=60"};
  ExpectTrains("own", EvalSettings(longer));
  std::vector<std::string> settings = EvalSettings(longer);
  settings.push_back(EndpointsOf({&server}, "rollout.eval_endpoints"));
  Process trainer(Command(1, "elsewhere", settings, 12), dir_.File("elsewhere.log"));
  KillServersOf(trainer, {&server}, 6, absl::Seconds(0.1), absl::Seconds(0.4));
  ASSERT_EQ(trainer.Wait(absl::Seconds(120)), 0) << trainer.Output();
  ExpectSameEvaluations("own", "elsewhere");
}

TEST_F(TrainerEvalEndpointsTest, RefusesWhatHasNoMeaning) {
  const auto refusal = [&](const std::vector<std::string>& more) {
    std::string output;
    EXPECT_EQ(Train(teacher_->endpoint(), &output, Settings("refused", EvalSettings(more))), 64);
    return output;
  };
  const std::string servers = "rollout.eval_endpoints=[\"grpc://127.0.0.1:1\"]";
  EXPECT_THAT(refusal({servers, "eval.mode=blocking"}), HasSubstr("eval.mode = beside"));
  EXPECT_THAT(refusal({servers, "rollout.endpoints=[\"grpc://127.0.0.1:1\"]"}),
              HasSubstr("one of rollout.endpoints, too"));
  EXPECT_THAT(refusal({"rollout.eval_endpoints=[\"http://127.0.0.1:1\"]"}),
              HasSubstr("rollout.eval_endpoints: rollout endpoint \"http://127.0.0.1:1\""));
  // The teacher takes no weights.
  EXPECT_THAT(refusal({Concat("rollout.eval_endpoints=[\"", teacher_->endpoint(), "\"]")}),
              HasSubstr("--trainable"));
}

}  // namespace
}  // namespace taopd::testing
