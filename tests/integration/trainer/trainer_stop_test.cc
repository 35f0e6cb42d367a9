// A run is stopped, killed or loses its teacher in every phase, many times. The exit code is
// the documented one, nothing that should be saved is lost, and the resumed run ends with the
// weights of an undisturbed run.

#include <sys/stat.h>

#include <iterator>
#include <set>

#include "tests/integration/trainer/control_client.h"
#include "tests/integration/trainer/trainer_fixture.h"
#include "tests/support/process_usage.h"

namespace taopd::testing {
namespace {

constexpr absl::Duration kEnd = absl::Seconds(60);
constexpr int64_t kSteps = 16;
constexpr int64_t kSaveEvery = 4;

enum class Moment {
  kBeforeTheTeacher,  // the trainer waits for its first answer
  kAnywhere,          // generating, scoring, training, saving, between steps
  kEvaluating,
  kSaving,
  kScoring,  // the teacher does not answer
  kPaused,
  kNumMoments
};
constexpr const char* kMomentNames[] = {
    "before the teacher", "anywhere", "evaluating", "saving", "scoring", "paused"};
static_assert(std::size(kMomentNames) == static_cast<size_t>(Moment::kNumMoments));

enum class Act {
  kTerminate,
  kTerminateTwice,
  kInterrupt,
  kGroup,     // launch and its ranks, or twice
  kOneRank,   // of two
  kPostStop,  // POST /stop
  kBoth,      // POST /stop and a signal
  kKill,      // SIGKILL for the trainer or one rank
  kTeacher,   // the teacher is killed, and comes back
  kSlow,      // the teacher is slow
  kLost,      // the teacher stays away for longer than the run wants to wait
  kNumActs
};
constexpr const char* kActNames[] = {"SIGTERM",
                                     "two SIGTERMs",
                                     "SIGINT",
                                     "SIGTERM to the group",
                                     "SIGTERM to one rank",
                                     "POST /stop",
                                     "POST /stop and SIGTERM",
                                     "SIGKILL",
                                     "teacher killed",
                                     "teacher slow",
                                     "teacher lost"};
static_assert(std::size(kActNames) == static_cast<size_t>(Act::kNumActs));

struct Case {
  int64_t number = 0;
  int64_t num_ranks = 1;
  Moment moment = Moment::kAnywhere;
  Act act = Act::kTerminate;
  int64_t step = 0;         // the moment comes after this step
  absl::Duration later;     // and so much later
  double stop_grace_s = 0;  // 0 means that every stop after a step's first update leaves the step
};

class TrainerStopTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    StartTeacher(stories_);
    port_ = teacher().grpc_port();
  }

  Strings Settings(const std::string& run) {
    // A step has four mini-batches of four rollouts each, and each mini-batch several
    // micro-batches.
    return Words(Concat(
        RunDir(run), " trainer.total_steps=", kSteps, " trainer.save_every=", kSaveEvery,
        " trainer.eval_every=3 trainer.mini_batch_size=1 "
        "trainer.micro_batch_tokens=24 rollout.n=4 trainer.async_steps=",
        async_steps_, " eval.mode=", eval_mode_, " dist.deterministic=true teacher.timeout_s=2"));
  }
  Strings CommandOf(const Case& drawn, const std::string& run) {
    Strings settings = Settings(run);
    settings.push_back(Concat("trainer.stop_grace_s=", drawn.stop_grace_s));
    if (drawn.act == Act::kLost) settings.push_back("teacher.outage_budget_s=0.5");
    const std::string how = NewestCheckpoint(run) >= 0 ? "--resume" : "--overwrite";
    return Command(TrainArguments(settings, {how}), drawn.num_ranks);
  }

  static Case Draw(int64_t number, RandomStream& random) {
    Case drawn;
    drawn.number = number;
    // The first cases cover all moments and all acts.
    drawn.moment = static_cast<Moment>(number % static_cast<int64_t>(Moment::kNumMoments));
    drawn.act = static_cast<Act>(number < static_cast<int64_t>(Act::kNumActs)
                                     ? number
                                     : random.NextBelow(static_cast<uint64_t>(Act::kNumActs)));
    drawn.num_ranks =
        drawn.act == Act::kOneRank ? 2 : 1 + static_cast<int64_t>(random.NextBelow(2));
    drawn.step = 1 + static_cast<int64_t>(random.NextBelow(kSteps - 8));
    drawn.later = absl::Milliseconds(random.NextBelow(60));
    drawn.stop_grace_s = random.NextBelow(4) == 0 ? 240 : 0;
    return drawn;
  }

  int64_t StepsRecorded(const std::string& run) { return static_cast<int64_t>(Losses(run).size()); }
  static void Post(int page, const std::string& path) {
    const int status = ControlClient(page).Post(path);
    EXPECT_TRUE(status == 202 || status == 0) << path;  // 0: the run has just ended
  }

  // Waits for the case's moment. The run may end first.
  void Await(const Case& drawn, const std::string& run, Process& trainer) {
    const auto ends = [&] { return !trainer.running(); };
    if (drawn.moment == Moment::kBeforeTheTeacher) {
      EXPECT_TRUE(AwaitOutput("memory plan", trainer));
      absl::SleepFor(drawn.later);
      return;
    }
    EXPECT_TRUE(PollUntil(kEnd, [&] {
      return ends() || (ControlClient::PortOf(trainer) > 0 && StepsRecorded(run) >= drawn.step);
    })) << trainer.Output();
    const int page = ControlClient::PortOf(trainer);
    const auto phase_is = [&](const char* phase) {
      return PollUntil(kEnd, [&] { return ends() || ControlClient(page).Phase() == phase; });
    };
    switch (drawn.moment) {
      case Moment::kEvaluating:
        PollUntil(absl::Seconds(2),
                  [&] { return ends() || ControlClient(page).Phase() == "evaluating"; });
        return;
      case Moment::kSaving:
        Post(page, "/save");
        return;
      case Moment::kScoring:
        teacher().Signal(SIGSTOP);
        absl::SleepFor(10 * drawn.later);
        return;
      case Moment::kPaused:
        Post(page, "/pause");
        EXPECT_TRUE(phase_is("paused")) << trainer.Output();
        return;
      default:
        absl::SleepFor(drawn.later);
        return;
    }
  }

  // Performs the act. Returns the exit codes that it may lead to, besides 0 for a run that had
  // ended before.
  std::set<int> Perform(const Case& drawn, Process& trainer) {
    const std::vector<pid_t> ranks =
        drawn.num_ranks > 1 ? ChildrenOf(trainer.pid()) : std::vector<pid_t>();
    const int page = ControlClient::PortOf(trainer);
    switch (drawn.act) {
      case Act::kTerminateTwice:
        trainer.Signal(SIGTERM);
        absl::SleepFor(drawn.later);
        [[fallthrough]];
      case Act::kTerminate:
        trainer.Signal(SIGTERM);
        return {75};
      case Act::kInterrupt:
        trainer.Signal(SIGINT);
        return {75};
      case Act::kGroup:
        for (const pid_t rank : ranks) kill(rank, SIGTERM);
        trainer.Signal(SIGTERM);
        trainer.Signal(SIGTERM);
        return {75};
      case Act::kOneRank:
        if (!ranks.empty()) kill(ranks[drawn.number % static_cast<int64_t>(ranks.size())], SIGTERM);
        return {75};
      case Act::kBoth:
      case Act::kPostStop:
        if (page == 0) {  // there is no page yet
          trainer.Signal(SIGTERM);
          return {75};
        }
        Post(page, "/stop");
        if (drawn.act == Act::kBoth) trainer.Signal(SIGTERM);
        return {78};
      case Act::kKill:
        if (ranks.empty()) {
          trainer.Signal(SIGKILL);
        } else {
          kill(ranks[drawn.number % static_cast<int64_t>(ranks.size())], SIGKILL);
        }
        return {128 + SIGKILL};
      case Act::kTeacher:
        teacher().Kill();
        absl::SleepFor(drawn.later);
        StartTeacher(stories_, {}, port_);
        if (drawn.moment == Moment::kPaused) Post(page, "/resume");
        return {};
      case Act::kSlow:
        for (int i = 0; i < 5; ++i) {
          teacher().Signal(SIGSTOP);
          absl::SleepFor(drawn.later);
          teacher().Signal(SIGCONT);
          absl::SleepFor(absl::Milliseconds(20));
        }
        if (drawn.moment == Moment::kPaused) Post(page, "/resume");
        return {};
      case Act::kLost:
        teacher().Kill();
        if (drawn.moment == Moment::kPaused) Post(page, "/resume");
        // Otherwise it would keep waiting.
        if (drawn.moment == Moment::kBeforeTheTeacher) trainer.Signal(SIGTERM);
        return {drawn.moment == Moment::kBeforeTheTeacher ? 75 : 69};
      case Act::kNumActs:
        break;
    }
    return {};
  }

  void RunCase(const Case& drawn, const std::map<std::string, std::string>& whole) {
    const std::string run = Concat("case-", drawn.number);
    if (drawn.moment == Moment::kBeforeTheTeacher) teacher().Signal(SIGSTOP);
    Process trainer(CommandOf(drawn, run), dir_.File(run + ".log"));
    Await(drawn, run, trainer);
    std::set<int> codes = Perform(drawn, trainer);
    // A stop does not wait for a stopped teacher; everything else needs it.
    const bool is_stop = codes.contains(75) || codes.contains(78);
    if (!is_stop) teacher().Signal(SIGCONT);
    codes.insert(0);
    const int code = trainer.Wait(kEnd);
    teacher().Signal(SIGCONT);
    EXPECT_TRUE(codes.contains(code)) << code << "\n" << trainer.Output();
    num_stops_ += is_stop ? 1 : 0;
    num_stopped_ += is_stop && code != 0 ? 1 : 0;

    const int64_t recorded = StepsRecorded(run),
                  saved = std::max<int64_t>(0, NewestCheckpoint(run));
    if (is_stop || drawn.act == Act::kLost) {
      EXPECT_EQ(saved, recorded) << trainer.Output();
    } else {
      // One checkpoint may have been in progress.
      EXPECT_GE(saved, recorded - 2 * kSaveEvery) << trainer.Output();
    }
    if (drawn.act == Act::kLost) StartTeacher(stories_, {}, port_);
    const int64_t num_ranks = 1 + (drawn.number / 2) % 2;
    if (code != 0) {
      Case rest = drawn;
      rest.act = Act::kTerminate;  // with the usual patience
      rest.num_ranks = num_ranks;
      Process resumed(CommandOf(rest, run), dir_.File(run + ".resumed.log"));
      EXPECT_EQ(resumed.Wait(kEnd), 0) << resumed.Output();
    }
    EXPECT_EQ(ModelOf(run), whole) << trainer.Output();
    // Two ranks add the rows' losses in another order.
    constexpr double kOtherRanks = 1e-12;  // relative
    ExpectSameLosses(run, "whole", drawn.num_ranks == 1 && num_ranks == 1 ? 0 : kOtherRanks);
    if (!HasFailure()) std::filesystem::remove_all(dir_.File(run));
  }

  void RunCases(Act first_act, Act last_act);
  int port_ = 0;
  int64_t async_steps_ = 0;
  std::string eval_mode_ = "blocking";
  int64_t num_stops_ = 0, num_stopped_ = 0;  // cases that ask for a stop, and that ended by it
};

// Runs one case for each act from first_act to last_act. TAOPD_STOP_CASES sets another number of
// cases (200 in the ctest entry with the label slow), TAOPD_STOP_FIRST the number of another first
// case, to repeat one, and TAOPD_STOP_SEED the seed of the moments.
void TrainerStopTest::RunCases(Act first_act, Act last_act) {
  // The number of an act's first case is that of the act.
  const auto first_number = static_cast<int64_t>(first_act);
  const int64_t first = NumberFromEnvironment("TAOPD_STOP_FIRST", first_number);
  const int64_t count =
      NumberFromEnvironment("TAOPD_STOP_CASES", static_cast<int64_t>(last_act) - first_number + 1);
  const int64_t seed = NumberFromEnvironment("TAOPD_STOP_SEED", 1);
  ASSERT_TRUE(Trains(Settings("whole")));
  const auto whole = ModelOf("whole");
  for (int64_t i = first; i < first + count; ++i) {
    RandomStream random(static_cast<uint64_t>(1000 * seed + i));
    const Case drawn = Draw(i, random);
    const std::string what =
        Concat("TAOPD_STOP_SEED=", seed, " TAOPD_STOP_FIRST=", i, ": ",
               kActNames[static_cast<int>(drawn.act)], ", ",
               kMomentNames[static_cast<int>(drawn.moment)], ", after step ", drawn.step, ", ",
               drawn.num_ranks, " ranks, stop_grace_s ", drawn.stop_grace_s);
    std::printf("%s\n", what.c_str());
    std::fflush(stdout);
    SCOPED_TRACE(what);
    RunCase(drawn, whole);
    if (HasFailure()) return;
  }
  // A stop that comes late finds a finished run, but not all of them may.
  if (num_stops_ >= 3) {
    EXPECT_GT(num_stopped_, 0) << "of " << num_stops_ << " stops";
  }
}

TEST_F(TrainerStopTest, AStoppedRunEndsLikeOneThatWasLeftAlone) {
  RunCases(Act::kTerminate, Act::kLost);
}

TEST_F(TrainerStopTest, AStoppedRunOneStepOffEndsLikeOneThatWasLeftAlone) {
  async_steps_ = 1;
  RunCases(Act::kGroup, Act::kKill);
}

TEST_F(TrainerStopTest, AStoppedRunWithEvaluationsBesideItEndsLikeOneThatWasLeftAlone) {
  eval_mode_ = "beside";
  RunCases(Act::kKill, Act::kLost);
}

// A step of supervised training that takes long is abandoned before its update.
TEST_F(TrainerStopTest, SftAbandonsAStepAndTheResumedRunHasTheSameBits) {
  const auto command = [&](const std::string& run, const Strings& flags = {}) {
    return Command(SftArguments({RunDir(run), "trainer.batch_size=4000",
                                 "trainer.micro_batch_tokens=64", "trainer.total_steps=1"},
                                flags));
  };
  ASSERT_EQ(RunCommand(command("whole")), 0) << output_;
  Process stopped(command("stopped"), dir_.File("stopped.log"));
  ASSERT_TRUE(AwaitOutput("started", stopped)) << stopped.Output();
  stopped.Signal(SIGTERM);
  EXPECT_EQ(stopped.Wait(kEnd), 75) << stopped.Output();
  EXPECT_THAT(stopped.Output(), HasSubstr("asked to stop after step 0"));
  EXPECT_EQ(NewestCheckpoint("stopped"), 0);
  EXPECT_EQ(RunCommand(command("stopped", {"--resume"})), 0) << output_;
  EXPECT_EQ(ModelOf("stopped"), ModelOf("whole"));
}

TEST_F(TrainerStopTest, AnEvaluationEndsAtOnceAndKeepsItsJournal) {
  WriteTokenizer();
  const std::string model = WriteTextStudent();
  WriteProblems(24);
  const std::string journal = dir_.File("results.responses.jsonl");
  const Strings eval = With({"eval", "--model", model, "--data", dir_.File("problems.jsonl"),
                             "--output", dir_.File("results.json")},
                            {"eval.n=64", "eval.max_response_length=80"});
  std::string kept;
  for (const bool resumes : {false, true}) {
    Process process(Command(eval), dir_.File("eval.log"));
    ASSERT_TRUE(PollUntil(kEnd, [&] {
      return !process.running() ||
             (std::filesystem::exists(journal) && ReadFile(journal).size() > kept.size() + 2000);
    })) << process.Output();
    process.Signal(SIGTERM);
    EXPECT_EQ(process.Wait(kEnd), 75) << process.Output();
    EXPECT_THAT(process.Output(), HasSubstr("the responses so far are kept in " + journal));
    EXPECT_EQ(process.Output().find("resumed journal=") != std::string::npos, resumes);
    EXPECT_FALSE(Exists("results.json"));
    const std::string lines = ReadFile(journal);
    EXPECT_TRUE(lines.starts_with(kept));
    kept = lines.substr(0, lines.rfind('\n') + 1);
  }
}

// Nothing is written to the data, a named pipe, so the run waits for it and cannot stop in order.
TEST_F(TrainerStopTest, SignalsThatKeepComingEndTheRunAtOnce) {
  const std::string data = dir_.File("silent.jsonl");
  ASSERT_EQ(mkfifo(data.c_str(), 0600), 0);
  constexpr absl::Duration kSameRequest = absl::Seconds(5);  // signals so soon count as one
  const absl::Time start = absl::Now();
  std::vector<std::unique_ptr<Process>> processes;
  for (const bool launched : {false, true}) {
    const std::string name = launched ? "launched" : "alone";
    const Strings sft = SftArguments({FileSetting("data.train", "silent.jsonl"), RunDir(name)});
    processes.push_back(std::make_unique<Process>(
        Command(launched ? Joined(Words("launch --nproc 1 --"), sft) : sft),
        dir_.File(name + ".log")));
    Process& process = *processes.back();
    ASSERT_TRUE(AwaitOutput("silent.jsonl", process)) << process.Output();
    process.Signal(SIGTERM);
    process.Signal(SIGINT);
  }
  for (const auto& process : processes) {
    EXPECT_TRUE(PollUntil(kEnd, [&] {
      process->Signal(SIGTERM);
      return !process->running();
    })) << process->Output();
    EXPECT_GE(absl::Now() - start, kSameRequest);
    EXPECT_EQ(process->Wait(kEnd), 77) << process->Output();
    EXPECT_THAT(process->Output(), HasSubstr("another signal after 5 s"));
    EXPECT_THAT(process->Output(), HasSubstr("ending now: nothing is saved"));
  }
}

TEST_F(TrainerStopTest, CheckpointsByTimeChangeNothing) {
  ASSERT_TRUE(Trains(Settings("whole")));
  const Strings settings =
      Joined(Settings("run"), Words("trainer.save_every=0 trainer.save_minutes=1e-6 "
                                    "trainer.keep_checkpoints=100 trainer.async_save=off"));
  ASSERT_TRUE(Trains(settings));
  EXPECT_EQ(Checkpoints("run").size(), static_cast<size_t>(kSteps)) << "one for each step";
  EXPECT_EQ(ModelOf("run"), ModelOf("whole"));
}

}  // namespace
}  // namespace taopd::testing
