// Tests of how a run watches itself: roll-backs, the best checkpoint, the time limit, failing
// evaluations, the timeline and the memory plan.

#include <set>
#include <sstream>

#include "common/base/memory.h"
#include "tests/integration/trainer/control_client.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using TrainerWatchTest = TrainerTest;

// The rate climbs until the student's entropy collapses. The run goes back to an earlier checkpoint
// with a lower rate and ends without an alarm.
TEST_F(TrainerWatchTest, ADivergenceRollsBackAndRecovers) {
  const std::string settings =
      "trainer.save_every=1 optimizer.lr=8.0 optimizer.warmup_steps=200 optimizer.max_grad_norm=0 "
      "eval.measure=none guard.baseline_steps=2 guard.patience=2 guard.tail_ratio.limit=0 "
      "guard.low_entropy.limit=0.5 guard.low_entropy.action=roll_back guard.high_entropy.limit=0 "
      "guard.rollback_lr_factor=0.01 trainer.total_steps=";
  ASSERT_TRUE(Trains(Words(settings + "24")));
  const std::vector<nlohmann::json> rolled_back = RollBacks("run");
  ASSERT_EQ(rolled_back.size(), 1u) << output_;
  const int64_t from = rolled_back[0].at("from_step"), to = rolled_back[0].at("to_step");
  EXPECT_LE(to, from - 3) << "the steps of the alarm are gone, and the update before";
  EXPECT_EQ(rolled_back[0].at("lr_factor"), 0.01);
  // Each step is recorded once, as if the steps before the roll-back had never happened.
  const std::vector<nlohmann::json> rows = Lines("run/metrics.jsonl");
  ASSERT_EQ(rows.size(), 24u);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    EXPECT_EQ(rows[i].at("step"), step);
    const double lr = 8.0 * static_cast<double>(step) / 200 * (step > to ? 0.01 : 1);
    EXPECT_NEAR(rows[i].at("optim/lr").get<double>(), lr, 1e-12) << step;
  }
  const auto entropy = [&](size_t row) { return rows[row].at("policy/entropy").get<double>(); };
  const double limit = 0.5 * (entropy(0) + entropy(1)) / 2;
  for (size_t row = to; row < rows.size(); ++row) EXPECT_GT(entropy(row), limit) << row;
  EXPECT_EQ(NewestCheckpoint("run"), 24);

  // Without the guard, the entropy does not recover.
  ASSERT_TRUE(Trains(Words(settings + "24 guard.low_entropy.limit=0 " + RunDir("unguarded"))));
  EXPECT_LT(LastMetric("unguarded", "policy/entropy"), limit);

  // A run that is stopped after the roll-back continues with the lower rate.
  ASSERT_TRUE(Trains(Words(settings + "25"), {"--resume"}));
  EXPECT_NEAR(LastMetric("run", "optim/lr"), 8.0 * 25 / 200 * 0.01, 1e-12);
}

// At step 7 every guard of this kind requests a roll-back to step 5 or before.
class RollBackTest : public TrainerWatchTest {
 protected:
  void SetUp() override {
    TrainerWatchTest::SetUp();
    ASSERT_TRUE(Trains(Settings({"trainer.total_steps=6"})));
  }
  static Strings Settings(const Strings& more) {
    return Joined(Words("trainer.save_every=2 trainer.keep_checkpoints=5 trainer.eval_every=6 "
                        "trainer.eval_at_start=false guard.baseline_steps=6 "
                        "trainer.best_metric=eval/kl_to_teacher"),
                  more);
  }
  int RollBack(const std::string& more = "") {
    return Train(Settings(Words("trainer.total_steps=10 trainer.max_wall_time_s=0.001 "
                                "guard.patience=1 guard.low_entropy.limit=100 "
                                "guard.low_entropy.action=roll_back " +
                                more)),
                 {"--resume"});
  }
};

TEST_F(RollBackTest, DamagedCheckpointsLoseNoLaterOne) {
  for (const int64_t step : {2, 4}) Damage(CheckpointOf("run", step) + "/model/model.safetensors");
  const auto checkpoints = FilesOf(dir_.File("run/checkpoints"));
  EXPECT_EQ(RollBack(), 65) << output_;
  EXPECT_THAT(output_, HasSubstr("nothing is changed: all 2 checkpoints"));
  EXPECT_EQ(FilesOf(dir_.File("run/checkpoints")), checkpoints);
  // The run continues from step 6 at its full rate.
  EXPECT_FALSE(Exists("run/rollbacks.json"));
  ASSERT_TRUE(Trains(Settings({"trainer.total_steps=7"}), {"--resume"}));
  EXPECT_EQ(LastMetric("run", "optim/lr"), 1e-3);
}

// Each start makes one step.
TEST_F(RollBackTest, AResumeDuringTheAlarmKeepsTheCheckpointFromBeforeIt) {
  for (const int64_t newest : {7, 8, 4}) {
    EXPECT_EQ(RollBack("guard.patience=3 trainer.save_every=1 trainer.keep_checkpoints=2"), 78)
        << output_;
    EXPECT_EQ(NewestCheckpoint("run"), newest);
  }
}

TEST_F(RollBackTest, WithoutAnEarlierCheckpointTheRunIsSavedAndEnds) {
  for (const int64_t step : {2, 4}) std::filesystem::remove_all(CheckpointOf("run", step));
  EXPECT_EQ(RollBack(), 76) << output_;
  EXPECT_THAT(output_, HasSubstr("nothing is changed: there is no checkpoint of at most 5 steps"));
  EXPECT_EQ(NewestCheckpoint("run"), 7);
}

TEST_F(RollBackTest, TheBestIsThatOfTheRunAsItStands) {
  EXPECT_EQ(ReadJson("run/best.json").at("step"), 6);
  EXPECT_EQ(RollBack(), 78) << output_;
  EXPECT_EQ(NewestCheckpoint("run"), 4);
  EXPECT_FALSE(Exists("run/best.json")) << "step 6 is gone";
  const auto rollbacks = ReadJson("run/rollbacks.json");
  EXPECT_EQ(rollbacks.at("count"), 1);
  EXPECT_EQ(rollbacks.at("lr_factor"), 0.5);
  EXPECT_EQ(rollbacks.at("to_step"), 4);
}

TEST_F(RollBackTest, ASummaryThatCannotBeRemovedDoesNotEndTheRun) {
  std::filesystem::remove(dir_.File("run/best.json"));
  std::filesystem::create_directories(dir_.File("run/best.json/in the way"));
  EXPECT_EQ(RollBack(), 78) << output_;
  EXPECT_THAT(output_, HasSubstr("best.json could not be removed"));
  EXPECT_EQ(NewestCheckpoint("run"), 4);
}

// A crash during a roll-back leaves the intent alone, and the earlier checkpoint.
TEST_F(RollBackTest, AnIntentCountsWhereTheRunWentBack) {
  const std::string path = dir_.File("run/rollbacks.json");
  const char* const intent =
      R"({"count": 0, "lr_factor": 1.0, "intent": {"to_step": 4, "count": 1, "lr_factor": 0.5}})";
  for (const bool went_back : {false, true}) {
    WriteFile(path, intent);
    if (went_back) {
      for (const int64_t step : {6, 7}) std::filesystem::remove_all(CheckpointOf("run", step));
    }
    ASSERT_TRUE(Trains(Settings({"trainer.total_steps=7"}), {"--resume"}));
    EXPECT_EQ(LastMetric("run", "optim/lr"), went_back ? 0.5e-3 : 1e-3);
  }
}

TEST_F(TrainerWatchTest, AGuardMayEndTheRun) {
  // Every entropy is below a hundred times the first one.
  ExpectTrainFails({"eval.measure=none", "guard.baseline_steps=1", "guard.patience=2",
                    "guard.low_entropy.limit=100", "guard.low_entropy.action=stop"},
                   76, "guard.low_entropy: policy/entropy = ");
  EXPECT_EQ(Losses("run").size(), 3u);
  EXPECT_EQ(NewestCheckpoint("run"), 3) << "the steps so far are saved first";
}

// One alarm is on from step 2, and another one from step 3, because its metric is measured every
// third step. A pause outlasts the process.
TEST_F(TrainerWatchTest, EachAlarmPausesTheRunOnce) {
  const Strings settings = Words(
      "trainer.total_steps=9 eval.measure=none optimizer.lr=0.1 guard.baseline_steps=1 "
      "guard.patience=2 guard.low_entropy.limit=100 guard.low_entropy.action=pause "
      "guard.kl_to_start.limit=1 guard.kl_to_start.action=pause guard.kl_every=3");
  for (const bool resumes : {false, true}) {
    Process trainer(Command(TrainArguments(settings, {"--resume=auto"})), dir_.File("train.log"));
    ControlClient client(ControlClient::AwaitPort(trainer));
    for (const int64_t step : {3, 6}) {
      ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] {
        return client.Step() == step && client.Phase() == "paused";
      })) << trainer.Output();
      if (!resumes) break;
      ASSERT_EQ(client.Post("/resume"), 202);
    }
    if (!resumes) trainer.Signal(SIGTERM);
    EXPECT_EQ(trainer.Wait(), resumes ? 0 : 75) << trainer.Output();
  }
}

TEST_F(TrainerWatchTest, TheBestCheckpointAndMilestonesAreKept) {
  ASSERT_TRUE(Trains({"trainer.total_steps=7", "trainer.save_every=1", "trainer.eval_every=1",
                      "trainer.eval_at_start=false", "trainer.best_metric=eval/kl_to_teacher",
                      "trainer.best_is=largest", "trainer.keep_every=4"}));
  // The divergence falls, so the first one is the largest.
  EXPECT_EQ(Checkpoints("run"), (std::set<int64_t>{1, 4, 6, 7}));
  const auto best = ReadJson("run/best.json");
  EXPECT_EQ(best.at("step"), 1);
  EXPECT_EQ(best.at("value"), Lines("run/metrics.jsonl")[1].at("eval/kl_to_teacher"));
}

TEST_F(TrainerWatchTest, ATimeLimitSavesAndTheRunGoesOn) {
  for (const int64_t async_steps : {0, 1}) {
    const std::string ahead = Concat("trainer.async_steps=", async_steps);
    ASSERT_TRUE(Trains({ahead, RunDir("whole")}, {"--overwrite"}));
    int code = 78, starts = 0;
    for (; code == 78 && starts < 10; ++starts) {
      code = Train({ahead, "trainer.max_wall_time_s=0.001"},
                   {starts == 0 ? "--overwrite" : "--resume"});
      if (code == 78) {
        EXPECT_EQ(NewestCheckpoint("run"), starts + 1) << output_;
      }
    }
    EXPECT_EQ(code, 0) << output_;
    EXPECT_EQ(starts, 6) << "one step each";
    EXPECT_EQ(Losses("run"), Losses("whole"));
    EXPECT_EQ(WeightsOf("run"), WeightsOf("whole"));
  }
}

// The limit is shorter than an evaluation. Each start makes progress, and nothing is measured
// twice.
TEST_F(TrainerWatchTest, ATimeLimitInterruptsEvaluationsThatGoOn) {
  const Strings settings = {"trainer.total_steps=2", "trainer.micro_batch_tokens=1",
                            "eval.num_prompts=4"};
  ASSERT_TRUE(Trains(Joined(settings, {RunDir("whole")})));
  const Strings limited = Joined(settings, {"trainer.max_wall_time_s=0.001"});
  int code = 78, starts = 0;
  for (; code != 0 && starts < 20; ++starts) {
    code = Train(limited, {"--resume=auto"});
    ASSERT_TRUE(code == 0 || code == 78) << code << output_;
  }
  EXPECT_EQ(code, 0);
  // If no evaluation were interrupted, each start would complete a step or an evaluation. How many
  // starts there are depends on the machine.
  constexpr int kStepsAndEvaluations = 4;
  EXPECT_GT(starts, kStepsAndEvaluations) << "an evaluation is interrupted between its passes";
  EXPECT_EQ(Losses("run"), Losses("whole"));
  EXPECT_EQ(LastMetric("run", "eval/kl_to_teacher"), LastMetric("whole", "eval/kl_to_teacher"));
  EXPECT_FALSE(Exists("run/evaluation_journal"));
}

// The step is saved before its evaluation, which a resumed run repeats.
TEST_F(TrainerWatchTest, AnEvaluationThatFailsLosesNothing) {
  const Strings settings = {"trainer.save_every=0", "teacher.outage_budget_s=0.5",
                            "teacher.timeout_s=2"};
  ASSERT_TRUE(Trains({RunDir("whole"), "trainer.save_every=0"}));
  // Only the evaluations request more of the teacher's tokens than it returns.
  StartTeacher(stories_, {"--max-logprobs", "64"});
  EXPECT_NE(Train(Joined(settings, {"eval.kl_top_k=100", "trainer.eval_at_start=false"})), 0);
  EXPECT_THAT(output_, HasSubstr("will refuse evaluations"));
  EXPECT_EQ(NewestCheckpoint("run"), 3) << output_;
  ASSERT_TRUE(Trains(settings, {"--resume"}));
  EXPECT_EQ(Losses("run"), Losses("whole"));
  const auto evaluated = Evaluations("run");
  ASSERT_EQ(evaluated.size(), 2u);
  EXPECT_EQ(evaluated[0].at("step"), 3);
  EXPECT_EQ(evaluated[1].at("step"), 6);
}

TEST_F(TrainerWatchTest, TheTimelineOpensInAViewer) {
  ASSERT_TRUE(Trains({"trainer.trace_steps=3"}));
  const auto trace = ReadJson("run/trace.json");
  std::map<int64_t, std::string> rows;
  std::map<std::string, int> spans;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") rows[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") == "X") {
      EXPECT_TRUE(rows.contains(event.at("tid")));
      ++spans[event.at("cat") == "training" ? event.at("name") : event.at("cat")];
    }
  }
  // Each of the two mini-batches of a step has a span for the sum over ranks and another for the
  // update.
  EXPECT_EQ(spans["optimizer"], 12);
  EXPECT_EQ(spans["pack"], 3);
  EXPECT_GT(spans["rollout_wait"], 0);
  EXPECT_EQ(spans["rollout"], 24);
  EXPECT_EQ(spans["teacher"], 24);
  EXPECT_EQ(spans["save"], 1);
}

// In one configuration the parameters dominate the memory, in the other the activations, without an
// overlap of rollouts and training.
TEST_F(TrainerWatchTest, TheMemoryPlanIsNearTheMeasuredPeak) {
  // The heaps hold more or less free memory at the peak, depending on the order of the threads: the
  // peaks of ten runs on a busy machine differ by 20 MiB, which is 5 % of these small processes.
  constexpr double kHeapsDiffer = 16 << 20;
  struct Case {
    const char* name;
    int64_t vocab_size, hidden_size, num_layers;
    const char* settings;
  };
  const Case cases[] = {
      {"parameters", 8192, 384, 4, "trainer.mini_batch_size=2"},
      {"ahead", 8192, 384, 4, "trainer.mini_batch_size=2 trainer.async_steps=1"},
      {"beside", 8192, 384, 4,
       "trainer.mini_batch_size=2 eval.measure=kl eval.mode=beside eval.num_prompts=8"},
      {"activations", 2048, 128, 6,
       "data.max_response_length=112 data.train_batch_size=8 rollout.n=4 "
       "trainer.mini_batch_size=8 trainer.micro_batch_tokens=4096"},
  };
  for (const Case& c : cases) {
    const std::string student = Concat("large_", c.vocab_size);
    if (!Exists(student)) {
      MakeModel(student, {{"vocab_size", c.vocab_size},
                          {"hidden_size", c.hidden_size},
                          {"intermediate_size", 3 * c.hidden_size},
                          {"num_hidden_layers", c.num_layers},
                          {"head_dim", c.hidden_size / 4}});
      StartTeacher(dir_.File(student + "/model"));
    }
    const Strings settings =
        Words(Concat("student.model=", dir_.File(student + "/model"), " ", RunDir(c.name),
                     " eval.measure=none trainer.total_steps=2 ", c.settings));
    // A program that is not loaded by itself shares the memory of its libraries (loaded_program.h).
    ASSERT_EQ(RunCommand(Joined({"/usr/bin/env"}, Command(TrainArguments(settings)))), 0)
        << output_;
    ASSERT_TRUE(Runs(PlanArguments(settings)));
    int64_t planned = 0;
    std::istringstream lines(output_);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("cpu ") || line.find("(limit)") != std::string::npos) continue;
      // The bytes are the first number after the name.
      planned += std::stoll(line.substr(line.find_first_of("0123456789")));
    }
    const double measured = LastMetric(c.name, "memory/host_peak_gb") * (int64_t{1} << 30);
    EXPECT_NEAR(planned, measured, 0.1 * measured + kHeapsDiffer) << c.name << "\n" << output_;
  }
}

// No teacher is needed, and nothing is written.
TEST_F(TrainerWatchTest, APlanForADeviceThatIsTooSmallNamesTheLine) {
  const auto plan = [&](const std::string& memory, const Strings& settings = {}) {
    return PlanArguments(settings, {"--device-memory", memory});
  };
  EXPECT_TRUE(Runs(plan("cuda:80GB")));
  EXPECT_THAT(output_, HasSubstr("total on cuda: "));
  EXPECT_THAT(output_, HasSubstr("optimizer moments"));
  EXPECT_THAT(output_,
              HasSubstr(Concat("disk of run.dir ", dir_.File("run"), ": 3 checkpoints of ")));
  ExpectFails(plan("cuda:1GiB"), 71, "training activations");
  EXPECT_THAT(output_, HasSubstr("The line that is too large is \"runtime\""));
  // A size without a kind of device is that of the run's own kind.
  for (const auto& [device, total] : {std::pair("cpu", "total on cpu: "),
                                      {"auto", "total on cpu: "},
                                      {"cuda", "total on cuda: "}}) {
    EXPECT_TRUE(Runs(plan("80GB", {Concat("trainer.device=", device)})));
    EXPECT_THAT(output_, HasSubstr(total)) << device;
  }
  ExpectFails(plan("much"), 64, "--device-memory");
  EXPECT_FALSE(Exists("run"));
}

TEST_F(TrainerWatchTest, APlanAsJsonHasTheNumbersOfTheText) {
  for (const std::string memory : {"cpu:80GB", "cuda:80GB"}) {
    const Strings settings = {memory == "cpu:80GB" ? "optimizer.offload=false"
                                                   : "optimizer.offload=true"};
    const auto plan = [&](const Strings& flags) {
      return PlanArguments(settings, Joined({"--device-memory", memory}, flags));
    };
    ASSERT_TRUE(Runs(plan({"--json"})));
    const auto json = nlohmann::json::parse(output_);
    ASSERT_TRUE(Runs(plan({})));
    const auto bytes = [&](const char* key) { return json[key].get<int64_t>(); };
    const auto device = json["device"].get<std::string>();
    EXPECT_EQ(device, memory.substr(0, memory.find(':')));
    EXPECT_THAT(output_,
                HasSubstr(Concat("total on ", device, ": ", MemoryText(bytes("device_bytes")),
                                 " of ", MemoryText(bytes("device_limit_bytes")))));
    if (device == "cpu") {
      EXPECT_EQ(bytes("host_bytes"), bytes("device_bytes"));
    } else {
      EXPECT_THAT(output_,
                  HasSubstr(Concat("total on the host: ", MemoryText(bytes("host_bytes")), "\n")));
    }
    EXPECT_THAT(output_, HasSubstr(Concat(bytes("num_checkpoints"), " checkpoints of ",
                                          bytes("checkpoint_bytes"), " bytes")));
    EXPECT_THAT(output_, HasSubstr(Concat("take ", bytes("disk_bytes"), " bytes")));
  }
  ExpectFails(PlanArguments({}, {"--json", "--teraflops", "1", "--memory-gb-per-s", "1"}), 64,
              "--teraflops excludes --json");
  EXPECT_FALSE(Exists("run"));
}

// The limit applies to the plan and to the run, whatever memory the machine has.
TEST_F(TrainerWatchTest, ALimitOfMemoryOnTheCpuRefusesThePlanAndTheRun) {
  const Strings limit = {kNobody, "trainer.cpu_memory_limit=1MiB"};
  for (const Strings& arguments : {PlanArguments(limit), TrainArguments(limit)})
    ExpectFails(arguments, 71, "which exceeds its 1.0 MiB (cpu_memory_limit)");
  EXPECT_FALSE(Exists("run/checkpoints"));
}

TEST_F(TrainerWatchTest, APlanWithCudaGraphsHasALineForThem) {
  const Strings plan = PlanArguments({"rollout.cuda_graphs=true"});
  ExpectFails(plan, 64, "rollout.cuda_graphs = true: the device is a CPU");
  EXPECT_TRUE(Runs(Joined(plan, {"--device-memory", "cuda:80GB"})));
  EXPECT_THAT(output_, ::testing::ContainsRegex("cuda +CUDA graphs"));
}

TEST_F(TrainerWatchTest, APlanWithOffloadHasAHost) {
  Strings plan = PlanArguments({"optimizer.offload=true"});
  ExpectFails(plan, 64, "optimizer.offload = true: the device is a CPU");
  plan = Joined(plan, {"--device-memory", "cuda:80GB"});
  EXPECT_TRUE(Runs(plan));
  EXPECT_THAT(output_, ::testing::ContainsRegex("cpu +optimizer moments"));
  EXPECT_THAT(output_, HasSubstr("total on the host: "));
  plan = Joined(plan, Words("--teraflops 400 --memory-gb-per-s 2700"));
  ExpectFails(plan, 64, "--host-gb-per-s is needed");
  EXPECT_TRUE(Runs(Joined(plan, {"--host-gb-per-s", "200"})));
  EXPECT_THAT(output_, HasSubstr("bytes of the host's memory"));
}

}  // namespace
}  // namespace taopd::testing
