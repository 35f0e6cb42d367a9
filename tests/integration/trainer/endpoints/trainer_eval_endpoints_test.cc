// Evaluations beside training whose responses come from servers (rollout.eval_endpoints): they are
// those of a trainer that generates them itself, whatever becomes of the servers.

#include "tests/integration/trainer/endpoints/rollout_servers.h"

namespace taopd::testing {
namespace {

class TrainerEvalEndpointsTest : public TrainerEndpointsTest {
 protected:
  void SetUp() override {
    TrainerEndpointsTest::SetUp();
    WriteTokenizer();
    text_student_ = WriteTextStudent();
    problems_ = WriteProblems(12);
  }
  void StartServer(Worker* worker) {
    worker->model_dir = text_student_;
    Start(worker);
  }
  Strings EvalSettings(const Strings& more = {}) {
    const Strings files = {"student.model=" + text_student_, problems_};
    return Joined(Joined(files, Words("eval.measure=accuracy eval.mode=beside eval.num_prompts=12 "
                                      "eval.n=4 eval.max_response_length=40 eval.num_samples=48")),
                  more);
  }
  void ExpectSameEvaluations(const std::string& a, const std::string& b) {
    ExpectSameResult(a, b);
    EXPECT_EQ(Evaluations(a), Evaluations(b));
    EXPECT_EQ(Evaluations(a).size(), 4U) << "before, after 5 and 10 steps, and after the last";
    EXPECT_FALSE(Samples(a).empty());
    EXPECT_EQ(Samples(a), Samples(b));
    for (const std::string& run : {a, b}) EXPECT_FALSE(Exists(run + "/weights-rank-0-eval"));
  }

  std::string text_student_, problems_;
};

TEST_F(TrainerEvalEndpointsTest, ServersEvaluateTheWeightsThatAreMeasured) {
  Worker server, rollouts;
  StartServer(&server);
  StartServer(&rollouts);
  const std::string servers = EndpointsOf({server.endpoint()}, "rollout.eval_endpoints");
  ExpectTrains("own", EvalSettings());
  ExpectTrains("elsewhere", EvalSettings({servers}));
  ExpectSameEvaluations("own", "elsewhere");
  EXPECT_THAT(LogOf(server), HasSubstr("version=step-5-"));
  EXPECT_THAT(LogOf(server), Not(HasSubstr("version=step-4-"))) << "only measured weights are sent";
  // Beside servers of rollouts, and with weights that are sent.
  ExpectTrains("both", EvalSettings({servers, EndpointsOf({rollouts.endpoint()}),
                                     "rollout.weight_transfer=stream"}));
  ExpectSameEvaluations("own", "both");
}

TEST_F(TrainerEvalEndpointsTest, AServerThatIsKilledAgainAndAgainChangesNothing) {
  Worker server;
  StartServer(&server);
  // Evaluations take longer than the steps.
  const Strings longer = {"eval.n=16", "eval.max_response_length=60"};
  ExpectTrains("own", EvalSettings(longer));
  const Strings settings =
      EvalSettings(Joined(longer, {EndpointsOf({server.endpoint()}, "rollout.eval_endpoints")}));
  Process trainer(Command(Arguments("elsewhere", settings, 12)), dir_.File("elsewhere.log"));
  KillServersOf(trainer, {&server}, NumKills(3), absl::Seconds(0.1), absl::Seconds(0.4));
  ASSERT_EQ(trainer.Wait(absl::Seconds(120)), 0) << trainer.Output();
  ExpectSameEvaluations("own", "elsewhere");
}

TEST_F(TrainerEvalEndpointsTest, RefusesWhatHasNoMeaning) {
  const auto expect_refused = [&](const Strings& more, const std::string& message) {
    ExpectTrainFails(Settings("refused", EvalSettings(more)), 64, message);
  };
  const std::string servers = "rollout.eval_endpoints=[\"grpc://127.0.0.1:1\"]";
  expect_refused({servers, "eval.mode=blocking"}, "eval.mode = beside");
  expect_refused({servers, "rollout.endpoints=[\"grpc://127.0.0.1:1\"]"},
                 "one of rollout.endpoints, too");
  expect_refused({"rollout.eval_endpoints=[\"http://127.0.0.1:1\"]"},
                 "rollout.eval_endpoints: rollout endpoint \"http://127.0.0.1:1\"");
  // The teacher takes no weights.
  expect_refused({EndpointsOf({teacher().endpoint()}, "rollout.eval_endpoints")}, "--trainable");
}

}  // namespace
}  // namespace taopd::testing
