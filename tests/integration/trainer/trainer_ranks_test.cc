// Tests of training on several ranks: real processes over Gloo on 127.0.0.1, started by
// `taopd-trainer launch` or by the test itself.

#include <sstream>

#include "tests/integration/trainer/trainer_fixture.h"
#include "tests/support/process_usage.h"

namespace taopd::testing {
namespace {

// All ranks must end within this time.
constexpr absl::Duration kEnd = absl::Seconds(30);

class TrainerRanksTest : public TrainerTest {
 protected:
  // The last `--set` wins, so `more` goes before these.
  Strings Settings(const std::string& run, int64_t steps, bool deterministic = true) {
    Strings settings = {Concat("trainer.total_steps=", steps), RunDir(run)};
    if (deterministic) settings.push_back("dist.deterministic=true");
    return settings;
  }
  // Kills one of two ranks at random moments, and compares the result with an undisturbed run.
  void KillRanks(int64_t async_steps);

  // Starts rank `rank` as a process that meets the others at a file.
  std::unique_ptr<Process> StartRank(int64_t rank, int64_t world_size, Strings arguments) {
    const Strings environment = {"/usr/bin/env", Concat("RANK=", rank),
                                 Concat("WORLD_SIZE=", world_size),
                                 Concat("TAOPD_RENDEZVOUS_FILE=", dir_.File("meet"))};
    return std::make_unique<Process>(Joined(environment, Command(std::move(arguments))),
                                     dir_.File(Concat("rank-", rank, ".log")));
  }
};

TEST_F(TrainerRanksTest, FixedSharesEndWithTheSameWeightsWhereverTheyWereComputed) {
  for (const int64_t ranks : {1, 2, 4}) {
    const std::string run = Concat("run-", ranks);
    // The peak of the processor is measured.
    ASSERT_TRUE(Trains(Joined(Settings(run, 4), {"trainer.peak_flops=0"}), {}, ranks));
    EXPECT_EQ(WeightsOf(run), WeightsOf("run-1")) << ranks;
    EXPECT_EQ(Losses(run).size(), 4U);
    // The evaluations have the same weights.
    EXPECT_EQ(LastMetric(run, "eval/kl_to_teacher"), LastMetric("run-1", "eval/kl_to_teacher"));
    EXPECT_EQ(LastMetric(run, "rollout/tokens"), LastMetric("run-1", "rollout/tokens"));
    // The attempts of all ranks count, not only those of rank 0.
    std::string attempts = "teacher/" + teacher().endpoint().substr(7) + "/attempts";
    for (char& c : attempts) c = c == '.' || c == ':' ? '_' : c;
    EXPECT_EQ(LastMetric(run, attempts), LastMetric("run-1", attempts));
    EXPECT_GT(LastMetric(run, "perf/mfu"), 0);
  }
  // The run moves from two ranks to one and then to four, and the result is still the same.
  ASSERT_TRUE(Trains(Settings("moved", 2), {}, 2));
  ASSERT_TRUE(Trains(Settings("moved", 3), {"--resume"}));
  ASSERT_TRUE(Trains(Settings("moved", 4), {"--resume"}, 4));
  EXPECT_EQ(WeightsOf("moved"), WeightsOf("run-1"));
}

TEST_F(TrainerRanksTest, ThreeRanksLearnWhatOneLearns) {
  constexpr double kRelative = 1e-5;  // other orders of float32 sums
  for (const int64_t ranks : {1, 3}) {
    ASSERT_TRUE(Trains(Settings(Concat("run-", ranks), 6, /*deterministic=*/false), {}, ranks));
  }
  // The run moves from two ranks to three half-way.
  for (const auto& [ranks, steps] : {std::pair(2, 3), std::pair(3, 6)}) {
    ASSERT_TRUE(
        Trains(Settings("moved", steps, /*deterministic=*/false), {"--resume=auto"}, ranks));
  }
  EXPECT_EQ(Losses("run-1").size(), 6U);
  ExpectSameLosses("run-3", "run-1", kRelative);
  ExpectSameLosses("moved", "run-1", kRelative);
  // Each rank evaluates its part.
  const double kl = LastMetric("run-1", "eval/kl_to_teacher");
  EXPECT_NEAR(LastMetric("run-3", "eval/kl_to_teacher"), kl, kRelative * kl);
  EXPECT_EQ(LastMetric("run-3", "eval/n"), LastMetric("run-1", "eval/n"));
}

// The prompts are text with answers, and three ranks share twelve responses.
TEST_F(TrainerRanksTest, AccuracyIsDividedAmongTheRanks) {
  WriteTokenizer();
  const std::string problems = WriteProblems(4), student = "student.model=" + WriteTextStudent();
  for (const int64_t ranks : {1, 3}) {
    const Strings settings =
        Joined(Settings(Concat("run-", ranks), 2, /*deterministic=*/false),
               Joined({student, problems},
                      Words("eval.measure=accuracy eval.n=3 eval.num_prompts=0 "
                            "eval.max_response_length=8 eval.temperature=1.0 optimizer.lr=0")));
    ASSERT_TRUE(Trains(settings, {}, ranks));
  }
  for (const char* metric : {"eval/accuracy", "eval/n", "eval/response_length_mean",
                             "eval/truncated_share", "eval/no_answer_share"}) {
    EXPECT_EQ(LastMetric("run-3", metric), LastMetric("run-1", metric)) << metric;
  }
  EXPECT_EQ(LastMetric("run-1", "eval/n"), 4);
  EXPECT_GT(LastMetric("run-1", "eval/response_length_mean"), 0);
  EXPECT_EQ(ReadFile(dir_.File("run-3/samples.jsonl")), ReadFile(dir_.File("run-1/samples.jsonl")));
}

void TrainerRanksTest::KillRanks(int64_t async_steps) {
  const int64_t steps = StepsOfKilledRun();
  const auto settings = [&](const std::string& run) {
    return Joined(Settings(run, steps), {Concat("trainer.async_steps=", async_steps)});
  };
  const absl::Duration whole = TimeOf(TrainArguments(settings("whole")));
  ASSERT_NO_FATAL_FAILURE(
      KillAndResume(TrainArguments(settings("killed"), {"--resume=auto"}), "killed", whole, 2));
  EXPECT_EQ(ModelOf("killed"), ModelOf("whole"));
  EXPECT_EQ(Losses("killed").size(), static_cast<size_t>(steps));
  EXPECT_EQ(LastMetric("killed", "policy/staleness"), async_steps);
}

TEST_F(TrainerRanksTest, ARankThatIsKilledEndsAllAndARestartGoesOn) { KillRanks(0); }

TEST_F(TrainerRanksTest, ARankIsKilledOneStepOff) { KillRanks(1); }

TEST_F(TrainerRanksTest, ARankIsKilledTwoStepsOff) { KillRanks(2); }

// Nobody but the launcher knows of the rank that died, and the other one would wait for it.
TEST_F(TrainerRanksTest, ARankThatIsKilledBeforeTheyMeetEndsAll) {
  Process launcher(Command(TrainArguments(Settings("run", 4)), 2), dir_.File("launcher.log"));
  ASSERT_TRUE(PollUntil(absl::Seconds(30), [&] { return ChildrenOf(launcher.pid()).size() == 2; }));
  const std::vector<pid_t> ranks = ChildrenOf(launcher.pid());
  kill(ranks[1], SIGKILL);
  EXPECT_EQ(launcher.Wait(kEnd), 128 + SIGKILL) << launcher.Output();
  EXPECT_NE(kill(ranks[0], 0), 0) << "it still runs";
  EXPECT_THAT(launcher.Output(), HasSubstr("ranks that have not ended are terminated"));
  EXPECT_FALSE(Exists("run/checkpoints"));
}

// The rank still loads when the signal comes. A command that does not take signals ends by it.
TEST_F(TrainerRanksTest, ASignalThatComesEarlyEndsARankAsALaterOneDoes) {
  const Strings train = TrainArguments({RunDir("run"), kNobody});
  const Strings score = Words(Concat("score --teacher grpc://127.0.0.1:1 --cache-dir ",
                                     dir_.File("cache"), " --input ", dir_.File("pairs.jsonl")));
  for (const auto& [command, code] : {std::pair(train, 75), std::pair(score, 128 + SIGTERM)}) {
    Process launcher(Command(Joined(Words("launch --nproc 1 --"), command)),
                     dir_.File("launcher.log"));
    ASSERT_TRUE(PollUntil(kEnd, [&] { return !ChildrenOf(launcher.pid()).empty(); }));
    launcher.Signal(SIGTERM);
    EXPECT_EQ(launcher.Wait(kEnd), code) << launcher.Output();
  }
}

// A parent's ignored SIGCHLD is inherited. The kernel would then reap the ranks itself.
TEST_F(TrainerRanksTest, TheLauncherSeesRanksEndWhereSignalsOfChildrenAreIgnored) {
  Process launcher(Joined({"/usr/bin/env", "--ignore-signal=CHLD"},
                          Command(Words("launch --nproc 1 -- objectives"))),
                   dir_.File("launcher.log"));
  EXPECT_EQ(launcher.Wait(kEnd), 0) << launcher.Output();
}

TEST_F(TrainerRanksTest, ARankThatIsStoppedEndsTheOthersAfterTheTimeout) {
  Strings settings = Settings("run", 1000);
  settings.push_back("dist.heartbeat_timeout_s=2");
  const auto arguments = TrainArguments(settings);
  auto zero = StartRank(0, 2, arguments), one = StartRank(1, 2, arguments);
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] { return NewestCheckpoint("run") > 0; }))
      << zero->Output() << one->Output();
  one->Signal(SIGSTOP);
  EXPECT_EQ(zero->Wait(kEnd), 69);
  EXPECT_THAT(zero->Output(), HasSubstr("rank 1 has sent no heartbeat for 2s"));
  one->Signal(SIGCONT);  // and finds that the others are gone
  EXPECT_EQ(one->Wait(kEnd), 69);
}

TEST_F(TrainerRanksTest, DifferentConfigurationsAreRefusedBeforeTheFirstStep) {
  Strings other = Settings("run", 4);
  other.push_back("optimizer.lr=2e-3");
  auto zero = StartRank(0, 2, TrainArguments(Settings("run", 4)));
  auto one = StartRank(1, 2, TrainArguments(other));
  for (Process* process : {zero.get(), one.get()}) {
    EXPECT_EQ(process->Wait(kEnd), 64);
    EXPECT_THAT(process->Output(), HasSubstr("rank 1: the configuration differs"));
    EXPECT_THAT(process->Output(), HasSubstr("optimizer.lr = 0.002"));
  }
  EXPECT_FALSE(Exists("run"));
}

TEST_F(TrainerRanksTest, ARankThatFailsAtTheStartIsNamedByAll) {
  const auto arguments = TrainArguments(Settings("run", 4));
  // Rank 2 of a world of 2 is refused instead of waiting for the others.
  auto alone = StartRank(2, 2, arguments);
  EXPECT_EQ(alone->Wait(kEnd), 64);
  EXPECT_THAT(alone->Output(), HasSubstr("RANK = 2 is not in [0, 1]"));
  // The run directory holds a run. Only rank 0 sees that, and all ranks report it.
  ASSERT_TRUE(Trains(Settings("run", 1)));
  auto zero = StartRank(0, 2, arguments), one = StartRank(1, 2, arguments);
  for (Process* process : {zero.get(), one.get()}) {
    EXPECT_EQ(process->Wait(kEnd), 64);
    EXPECT_THAT(process->Output(), HasSubstr("rank 0: run.dir"));
  }
}

// Each rank would write the same files.
TEST_F(TrainerRanksTest, CommandsOfOneProcessRefuseToBeOneOfSeveral) {
  const Strings commands[] = {SftArguments(),
                              {"eval", "--model", stories_},
                              {"score", "--input", dir_.File("none"), "--cache-dir", "c"}};
  for (const Strings& command : commands) {
    auto one = StartRank(1, 2, command);
    EXPECT_EQ(one->Wait(kEnd), 64) << command[0];
    EXPECT_THAT(one->Output(),
                HasSubstr(command[0] + " runs in one process, and this is one of 2"));
  }
}

TEST_F(TrainerRanksTest, ATornShardCostsOneCheckpoint) {
  ASSERT_TRUE(Trains(Settings("whole", 6)));
  ASSERT_TRUE(Trains(Settings("run", 4), {}, 2));
  const std::string torn = dir_.File(
      "run/checkpoints/step-000004/optimizer/shard-00001-model-00001-of-00001.safetensors");
  ASSERT_TRUE(std::filesystem::exists(torn));
  std::filesystem::resize_file(torn, std::filesystem::file_size(torn) - 1);
  ASSERT_TRUE(Trains(Settings("run", 6), {"--resume"}, 2));
  EXPECT_THAT(output_, HasSubstr("shard-00001-model-00001-of-00001.safetensors"));
  EXPECT_EQ(WeightsOf("run"), WeightsOf("whole"));
}

}  // namespace
}  // namespace taopd::testing
