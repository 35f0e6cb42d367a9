// Tests of runs with rewards, from a grader and from the example server, without a teacher; of
// given responses; and of the prompts that a roll-back skips.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

// A server that answers every request in one way.
constexpr char kBadServer[] = R"(
import http.server, json, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    num_good = int(sys.argv[2])
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rewards = [{"id": s["id"], "reward": float(i)} for i, s in enumerate(request["samples"])]
        if request["samples"]:
            Handler.num_good -= 1
        if Handler.num_good < 0:
            if sys.argv[1] == "missing": rewards.pop()
            if sys.argv[1] == "hang": time.sleep(1000)
        body = json.dumps({"rewards": rewards}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(f"http://127.0.0.1:{server.server_port}/", flush=True)
server.serve_forever()
)";

class TrainerRewardTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    settings_ = Joined(RewardSettings(), Words("optimizer.lr=1e-2 trainer.total_steps=4"));
  }
  // Returns the arguments that train on the reward alone with `more` settings.
  Strings Arguments(const std::string& run, const Strings& more, const Strings& flags = {}) {
    return TrainArguments(Joined(Joined(settings_, {RunDir(run)}), more), flags);
  }
  // Starts a Python program that prints its URL. Returns reward.url.
  std::string StartServer(std::optional<Process>* server, Strings arguments) {
    arguments.insert(arguments.begin(), {"/usr/bin/env", "python3", "-u"});
    const std::string log = dir_.File("server.log");
    server->emplace(arguments, log);
    EXPECT_TRUE(PollUntil(absl::Seconds(60), [&] {
      return ReadFile(log).find('\n') != std::string::npos || !(*server)->running();
    }));
    const std::string text = ReadFile(log);
    return "reward.url=" + text.substr(0, text.find('\n'));
  }
  Strings settings_;
};

TEST_F(TrainerRewardTest, AGraderAloneTrainsWithoutATeacherAndResumesBitForBit) {
  const Strings settings = {"reward.grader=regex", "reward.require_stop=false"};
  ASSERT_TRUE(Runs(Arguments("whole", settings)));
  EXPECT_GT(LastMetric("whole", "reward/mean"), 0);
  EXPECT_LT(LastMetric("whole", "reward/mean"), 1);
  // Metrics that compare with a teacher are left out, and the others have values.
  EXPECT_TRUE(std::isnan(LastMetric("whole", "policy/teacher_tail")));
  EXPECT_GT(LastMetric("whole", "policy/entropy"), 0);
  EXPECT_EQ(ReadFile(dir_.File("whole/metrics.jsonl")).find("policy/teacher"), std::string::npos);
  EXPECT_EQ(output_.find("  teacher "), std::string::npos) << output_;
  ASSERT_TRUE(Runs(Arguments("halves", Joined(settings, {"trainer.total_steps=2"}))));
  EXPECT_NE(WeightsOf("halves"), WeightsOf("whole"));
  ASSERT_TRUE(Runs(Arguments("halves", settings, {"--resume"})));
  EXPECT_EQ(WeightsOf("halves"), WeightsOf("whole"));
  EXPECT_EQ(LastMetric("halves", "reward/mean"), LastMetric("whole", "reward/mean"));
  // A reward of another kind is not the same run.
  ExpectFails(Arguments("halves", Joined(settings, {"reward.scale=none", "trainer.total_steps=5"}),
                        {"--resume"}),
              64, "reward.scale = \"none\": the checkpoint's run has \"std\"");
}

// Between the two mini-batches of the second step.
TEST_F(TrainerRewardTest, AStepThatIsLeftKeepsItsRewards) {
  const Strings settings = {"reward.grader=regex", "reward.require_stop=false",
                            "data.train_batch_size=12", "trainer.mini_batch_size=1"};
  ASSERT_TRUE(Runs(Arguments("whole", settings)));
  int num_left = 0;
  for (int attempt = 0; attempt < 20 && num_left == 0; ++attempt) {
    const std::string run = Concat("stopped-", attempt);
    const Strings stopped = Joined(settings, {"trainer.stop_grace_s=0"});
    {
      Process process(Command(Arguments(run, stopped)), dir_.File("stopped.log"));
      EXPECT_TRUE(
          PollUntil(absl::Seconds(60), [&] { return !process.running() || !Losses(run).empty(); }));
      absl::SleepFor(absl::Milliseconds(5 * attempt));  // a moment within a step
      process.Signal(SIGTERM);
      const int code = process.Wait();
      if (code == 0) continue;  // it was faster
      ASSERT_EQ(code, 75) << process.Output();
    }
    for (const auto& [file, hash] : FilesOf(dir_.File(run + "/checkpoints")))
      num_left += file.find("/pending/") != std::string::npos ? 1 : 0;
    ASSERT_TRUE(Runs(Arguments(run, stopped, {"--resume"})));
    EXPECT_EQ(WeightsOf(run), WeightsOf("whole")) << attempt;
    EXPECT_EQ(LastMetric(run, "reward/mean"), LastMetric("whole", "reward/mean"));
  }
  EXPECT_GT(num_left, 0) << "no stop came between two mini-batches";
}

TEST_F(TrainerRewardTest, TheExampleServerRewards) {
  std::optional<Process> server;
  const std::string url =
      StartServer(&server, {SourcePath("deploy/examples/reward_server/server.py"), "0"});
  ASSERT_TRUE(Runs(Arguments("run", {url})));
  // No response is the answer, and each character costs a thousandth.
  EXPECT_LT(LastMetric("run", "reward/mean"), 0);
  EXPECT_GT(LastMetric("run", "reward/mean"), -0.2);
  EXPECT_GT(LastMetric("run", "reward/std"), 0);
  EXPECT_EQ(LastMetric("run", "reward/retries"), 0);
}

TEST_F(TrainerRewardTest, BadAnswersEndTheRunByNameAndLoseNothing) {
  WriteFile(dir_.File("server.py"), kBadServer);
  for (const auto& [mode, code, says] :
       {std::tuple("missing", 65, "no reward of \"step-2-"), {"hang", 69, "time limit"}}) {
    SCOPED_TRACE(mode);
    std::optional<Process> server;
    // The first step has four prompts.
    const std::string url = StartServer(&server, {dir_.File("server.py"), mode, "4"});
    Strings settings = {url, "trainer.save_every=100"};
    // The other answers may be slow on a busy machine.
    if (code == 69)
      settings = Joined(settings, {"reward.timeout_s=0.3", "reward.outage_budget_s=1"});
    ExpectFails(Arguments(mode, settings), code, says);
    EXPECT_EQ(NewestCheckpoint(mode), 1) << "the first step is saved";
  }
  ExpectFails(
      Arguments("nobody", {"reward.url=http://127.0.0.1:1/", "reward.connect_timeout_s=0.1"}), 69,
      "reward: ");
  EXPECT_THAT(output_, HasSubstr("nothing listens there"));
}

TEST_F(TrainerRewardTest, SettingsThatDoNotFitAreNamed) {
  const auto refused = [&](const Strings& settings, const std::string& says) {
    ExpectFails(Arguments("refused", settings), 64, says);
  };
  refused({"reward.grader=math", "reward.answer_pattern=x"}, "answer_pattern \"x\" has no meaning");
  refused({"reward.grader=regex", "data.answer_key=solution"},
          "no row of data.train has an answer (data.answer_key)");
  refused({"reward.grader=regex", "dist.deterministic=true", "dist.shares=4"},
          "the section reward needs all responses to a prompt on one rank");
  refused({"reward.grader=regex", "teacher.endpoints=[\"grpc://127.0.0.1:1\"]"},
          "teacher.endpoints needs teacher.kind = server, not none");
}

TEST_F(TrainerRewardTest, GivenResponsesAreTrainedOnAndResumed) {
  const Strings settings = Words(
      "teacher.kind=self teacher.weights=start objective.name=forward_kl "
      "data.offpolicy_fraction=0.5 data.response_key=response "
      "teacher.top_k=8");
  ASSERT_TRUE(Runs(Arguments("whole", settings)));
  EXPECT_EQ(LastMetric("whole", "data/offpolicy_share"), 0.5);
  ASSERT_TRUE(Runs(Arguments("parts", Joined(settings, {"trainer.total_steps=3"}))));
  ASSERT_TRUE(Runs(Arguments("parts", settings, {"--resume"})));
  EXPECT_EQ(WeightsOf("parts"), WeightsOf("whole"));
  ExpectFails(Arguments("long", Joined(settings, {"data.max_response_length=2"})), 65,
              "the response of data.response_key has");
  ExpectFails(Arguments("none", Joined(settings, {"data.response_key=solution"})), 65,
              "has neither \"solution\" nor \"solution_ids\"");
}

TEST_F(TrainerRewardTest, StepsWithGivenResponsesAloneHaveNoDistanceToTheStart) {
  const Strings settings = Words(
      "teacher.kind=self teacher.weights=start objective.name=forward_kl "
      "data.offpolicy_fraction=1 data.response_key=response teacher.top_k=8 "
      "guard.kl_to_start.limit=100 guard.kl_every=1");
  ASSERT_TRUE(Runs(Arguments("given", settings)));
  EXPECT_EQ(LastMetric("given", "data/offpolicy_share"), 1);
  EXPECT_EQ(output_.find("is measured from here"), std::string::npos) << output_;
}

}  // namespace
}  // namespace taopd::testing
