// Tests of how a run watches itself: roll-backs, the best checkpoint, early stop, the time limit,
// failing evaluations, the timeline and the memory plan.

#include <set>

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

class TrainerWatchTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    teacher_.emplace(dir_, teacher_model_);
  }
  std::set<int64_t> Checkpoints() {
    std::set<int64_t> steps;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.File("run/checkpoints"))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step-")) steps.insert(std::stoll(name.substr(5)));
    }
    return steps;
  }
  std::vector<nlohmann::json> Lines(const std::string& file) {
    std::vector<nlohmann::json> rows;
    std::istringstream lines(ReadFile(dir_.File("run/" + file)));
    for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
    return rows;
  }
  std::optional<TeacherProcess> teacher_;
};

// The rate climbs until the student's entropy collapses. The run goes back to an earlier checkpoint
// with a lower rate and ends without an alarm.
TEST_F(TrainerWatchTest, ADivergenceRollsBackAndRecovers) {
  std::string output;
  const std::vector<std::string> settings = {"trainer.total_steps=24",
                                             "trainer.save_every=1",
                                             "optimizer.lr=8.0",
                                             "optimizer.warmup_steps=200",
                                             "optimizer.max_grad_norm=0",
                                             "eval.measure=none",
                                             "guard.baseline_steps=2",
                                             "guard.patience=2",
                                             "guard.tail_ratio.limit=0",
                                             "guard.low_entropy.limit=0.5",
                                             "guard.low_entropy.action=roll_back",
                                             "guard.high_entropy.limit=0",
                                             "guard.rollback_lr_factor=0.01"};
  ASSERT_EQ(Train(teacher_->endpoint(), &output, settings), 0) << output;
  std::vector<nlohmann::json> rolled_back;
  for (const auto& event : Lines("events.jsonl")) {
    if (event.at("event") == "rolled_back") rolled_back.push_back(event);
  }
  ASSERT_EQ(rolled_back.size(), 1u) << output;
  const int64_t from = rolled_back[0].at("from_step"), to = rolled_back[0].at("to_step");
  EXPECT_LE(to, from - 3) << "the steps of the alarm are gone, and the update before";
  EXPECT_EQ(rolled_back[0].at("lr_factor"), 0.01);
  // Each step is recorded once, as if the steps before the roll-back had never happened.
  const std::vector<nlohmann::json> rows = Lines("metrics.jsonl");
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
  std::vector<std::string> unguarded = settings;
  unguarded.push_back("guard.low_entropy.limit=0");
  unguarded.push_back(Concat("run.dir=", dir_.File("unguarded")));
  ASSERT_EQ(Train(teacher_->endpoint(), &output, unguarded), 0) << output;
  EXPECT_LT(LastMetric("unguarded", "policy/entropy"), limit);

  // A run that is stopped after the roll-back continues with the lower rate.
  std::vector<std::string> longer = settings;
  longer[0] = "trainer.total_steps=25";
  ASSERT_EQ(Train(teacher_->endpoint(), &output, longer, {"--resume"}), 0) << output;
  EXPECT_NEAR(LastMetric("run", "optim/lr"), 8.0 * 25 / 200 * 0.01, 1e-12);
}

// Rollouts in flight have no effect on a run that goes back: it ends as a run that starts at that
// checkpoint.
TEST_F(TrainerWatchTest, ARollBackOneStepOffEndsLikeARunThatStartsThere) {
  const std::vector<std::string> settings = {"trainer.total_steps=12",
                                             "trainer.save_every=1",
                                             "trainer.keep_checkpoints=20",
                                             "trainer.async_steps=1",
                                             "eval.measure=none",
                                             "optimizer.lr=8.0",
                                             "optimizer.warmup_steps=200",
                                             "optimizer.max_grad_norm=0",
                                             "guard.baseline_steps=2",
                                             "guard.patience=2",
                                             "guard.low_entropy.limit=0.5",
                                             "guard.low_entropy.action=roll_back",
                                             "guard.rollback_lr_factor=0.01"};
  std::string output;
  ASSERT_EQ(Train(teacher_->endpoint(), &output, settings), 0) << output;
  std::vector<nlohmann::json> rolled_back;
  for (const auto& event : Lines("events.jsonl")) {
    if (event.at("event") == "rolled_back") rolled_back.push_back(event);
  }
  ASSERT_EQ(rolled_back.size(), 1u) << output;
  const auto model = FilesOf(dir_.File("run/model"));
  // The same run once more, from the checkpoint to which it went back.
  for (const int64_t step : Checkpoints()) {
    if (step > rolled_back[0].at("to_step").get<int64_t>())
      std::filesystem::remove_all(
          dir_.File(Concat("run/checkpoints/step-0000", step < 10 ? "0" : "", step)));
  }
  std::filesystem::remove_all(dir_.File("run/model"));
  ASSERT_EQ(Train(teacher_->endpoint(), &output, settings, {"--resume"}), 0) << output;
  EXPECT_EQ(FilesOf(dir_.File("run/model")), model);
}

// At step 7 every guard of this kind requests a roll-back to step 5 or before.
class RollBackTest : public TrainerWatchTest {
 protected:
  void SetUp() override {
    TrainerWatchTest::SetUp();
    std::string output;
    ASSERT_EQ(Train(teacher_->endpoint(), &output, Settings({"trainer.total_steps=6"})), 0)
        << output;
  }
  static std::vector<std::string> Settings(const std::vector<std::string>& more) {
    std::vector<std::string> all = {"trainer.save_every=2",
                                    "trainer.keep_checkpoints=5",
                                    "trainer.eval_every=6",
                                    "trainer.eval_at_start=false",
                                    "trainer.best_metric=eval/kl_to_teacher",
                                    "guard.baseline_steps=6"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  int RollBack(std::string* output) {
    return Train(
        teacher_->endpoint(), output,
        Settings({"trainer.total_steps=10", "trainer.max_wall_time_s=0.001", "guard.patience=1",
                  "guard.low_entropy.limit=100", "guard.low_entropy.action=roll_back"}),
        {"--resume"});
  }
  void Damage(int64_t step) {
    const std::string path =
        dir_.File(Concat("run/checkpoints/step-00000", step, "/model/model.safetensors"));
    std::string bytes = ReadFile(path);
    bytes[bytes.size() / 2] ^= 1;
    WriteFile(path, bytes);
  }
};

TEST_F(RollBackTest, DamagedCheckpointsLoseNoLaterOne) {
  Damage(2);
  Damage(4);
  const auto checkpoints = FilesOf(dir_.File("run/checkpoints"));
  std::string output;
  EXPECT_EQ(RollBack(&output), 65) << output;
  EXPECT_THAT(output, HasSubstr("nothing is changed: all 2 checkpoints"));
  EXPECT_EQ(FilesOf(dir_.File("run/checkpoints")), checkpoints);
  // The run continues from step 6 at its full rate.
  EXPECT_FALSE(std::filesystem::exists(dir_.File("run/rollbacks.json")));
  ASSERT_EQ(Train(teacher_->endpoint(), &output, Settings({"trainer.total_steps=7"}), {"--resume"}),
            0)
      << output;
  EXPECT_EQ(LastMetric("run", "optim/lr"), 1e-3);
}

TEST_F(RollBackTest, TheBestIsThatOfTheRunAsItStands) {
  EXPECT_EQ(nlohmann::json::parse(ReadFile(dir_.File("run/best.json"))).at("step"), 6);
  std::string output;
  const int code = RollBack(&output);
  EXPECT_EQ(code, 78) << output;
  EXPECT_EQ(NewestCheckpoint("run"), 4);
  EXPECT_FALSE(std::filesystem::exists(dir_.File("run/best.json"))) << "step 6 is gone";
  const auto rollbacks = nlohmann::json::parse(ReadFile(dir_.File("run/rollbacks.json")));
  EXPECT_EQ(rollbacks.at("count"), 1);
  EXPECT_EQ(rollbacks.at("lr_factor"), 0.5);
  EXPECT_EQ(rollbacks.at("to_step"), 4);
}

// A crash during a roll-back leaves the intent alone, and the earlier checkpoint.
TEST_F(RollBackTest, AnIntentCountsWhereTheRunWentBack) {
  std::string output;
  const std::string path = dir_.File("run/rollbacks.json");
  const char* const intent =
      R"({"count": 0, "lr_factor": 1.0, "intent": {"to_step": 4, "count": 1, "lr_factor": 0.5}})";
  for (const bool went_back : {false, true}) {
    WriteFile(path, intent);
    if (went_back) {
      for (const int64_t step : {6, 7})
        std::filesystem::remove_all(dir_.File(Concat("run/checkpoints/step-00000", step)));
    }
    ASSERT_EQ(
        Train(teacher_->endpoint(), &output, Settings({"trainer.total_steps=7"}), {"--resume"}), 0)
        << output;
    EXPECT_EQ(LastMetric("run", "optim/lr"), went_back ? 0.5e-3 : 1e-3);
  }
}

TEST_F(TrainerWatchTest, AGuardMayEndTheRun) {
  std::string output;
  // Every entropy is below a hundred times the first one.
  EXPECT_EQ(Train(teacher_->endpoint(), &output,
                  {"eval.measure=none", "guard.baseline_steps=1", "guard.patience=2",
                   "guard.low_entropy.limit=100", "guard.low_entropy.action=stop"}),
            76)
      << output;
  EXPECT_THAT(output, HasSubstr("guard.low_entropy: policy/entropy = "));
  EXPECT_EQ(Losses(dir_.File("run")).size(), 3u);
  EXPECT_EQ(NewestCheckpoint("run"), 3) << "the steps so far are saved first";
}

TEST_F(TrainerWatchTest, TheBestCheckpointAndMilestonesAreKept) {
  std::string output;
  ASSERT_EQ(Train(teacher_->endpoint(), &output,
                  {"trainer.total_steps=7", "trainer.save_every=1", "trainer.eval_every=1",
                   "trainer.eval_at_start=false", "trainer.best_metric=eval/kl_to_teacher",
                   "trainer.best_is=largest", "trainer.keep_every=4"}),
            0)
      << output;
  // The divergence falls, so the first one is the largest.
  EXPECT_EQ(Checkpoints(), (std::set<int64_t>{1, 4, 6, 7}));
  const auto best = nlohmann::json::parse(ReadFile(dir_.File("run/best.json")));
  EXPECT_EQ(best.at("step"), 1);
  EXPECT_EQ(best.at("value"), Lines("metrics.jsonl")[1].at("eval/kl_to_teacher"));
}

// A rate of zero changes nothing, so no evaluation is better than the first one.
TEST_F(TrainerWatchTest, ARunWithoutImprovementFinishesEarly) {
  std::string output;
  const std::vector<std::string> settings = {"trainer.total_steps=20",
                                             "trainer.save_every=3",
                                             "trainer.eval_every=1",
                                             "trainer.best_metric=eval/kl_to_teacher",
                                             "trainer.early_stop_evaluations=4",
                                             "optimizer.lr=0"};
  ASSERT_EQ(Train(teacher_->endpoint(), &output, settings), 0) << output;
  EXPECT_THAT(output, HasSubstr("finishing early"));
  EXPECT_EQ(NewestCheckpoint("run"), 4);
  EXPECT_TRUE(std::filesystem::exists(dir_.File("run/model/model.safetensors")));
  // A second start finds in the record that the run has ended.
  ASSERT_EQ(Train(teacher_->endpoint(), &output, settings, {"--resume"}), 0) << output;
  EXPECT_EQ(NewestCheckpoint("run"), 4);
  EXPECT_EQ(Losses(dir_.File("run")).size(), 4u);
}

TEST_F(TrainerWatchTest, ATimeLimitSavesAndTheRunGoesOn) {
  std::string output;
  for (const int64_t async_steps : {0, 1}) {
    const std::string ahead = Concat("trainer.async_steps=", async_steps);
    ASSERT_EQ(Train(teacher_->endpoint(), &output, {ahead, "run.dir=" + dir_.File("whole")},
                    {"--overwrite"}),
              0)
        << output;
    int code = 78, starts = 0;
    for (; code == 78 && starts < 10; ++starts) {
      code = Train(teacher_->endpoint(), &output, {ahead, "trainer.max_wall_time_s=0.001"},
                   {starts == 0 ? "--overwrite" : "--resume"});
      if (code == 78) {
        EXPECT_EQ(NewestCheckpoint("run"), starts + 1) << output;
      }
    }
    EXPECT_EQ(code, 0) << output;
    EXPECT_EQ(starts, 6) << "one step each";
    EXPECT_EQ(Losses(dir_.File("run")), Losses(dir_.File("whole")));
    EXPECT_EQ(FileHash(dir_.File("run/model/model.safetensors")),
              FileHash(dir_.File("whole/model/model.safetensors")));
  }
}

// The limit is shorter than an evaluation. Each start makes progress, and nothing is measured
// twice.
TEST_F(TrainerWatchTest, ATimeLimitInterruptsEvaluationsThatGoOn) {
  std::string output;
  const std::vector<std::string> settings = {"trainer.total_steps=2",
                                             "trainer.micro_batch_tokens=1", "eval.num_prompts=4"};
  std::vector<std::string> whole = settings;
  whole.push_back(Concat("run.dir=", dir_.File("whole")));
  ASSERT_EQ(Train(teacher_->endpoint(), &output, whole), 0) << output;
  std::vector<std::string> limited = settings;
  limited.push_back("trainer.max_wall_time_s=0.001");
  int code = 78, starts = 0;
  for (; code != 0 && starts < 20; ++starts) {
    code = Train(teacher_->endpoint(), &output, limited, {"--resume=auto"});
    ASSERT_TRUE(code == 0 || code == 78) << code << output;
  }
  EXPECT_EQ(code, 0);
  // Two steps and two whole evaluations would take at most four starts. The number of passes that
  // one start computes before it checks the limit depends on the machine.
  EXPECT_GT(starts, 5) << "an evaluation is interrupted between its passes";
  EXPECT_EQ(Losses(dir_.File("run")), Losses(dir_.File("whole")));
  EXPECT_EQ(LastMetric("run", "eval/kl_to_teacher"), LastMetric("whole", "eval/kl_to_teacher"));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("run/evaluation_journal")));
}

// The step is saved before its evaluation, which a resumed run repeats.
TEST_F(TrainerWatchTest, AnEvaluationThatFailsLosesNothing) {
  std::string output;
  const std::vector<std::string> settings = {"trainer.save_every=0", "teacher.outage_budget_s=0.5",
                                             "teacher.timeout_s=2"};
  ASSERT_EQ(Train(teacher_->endpoint(), &output,
                  {Concat("run.dir=", dir_.File("whole")), "trainer.save_every=0"}),
            0)
      << output;
  // Only the evaluations request more of the teacher's tokens than it returns.
  std::vector<std::string> with_bad_evaluation = settings;
  with_bad_evaluation.push_back("eval.kl_top_k=100");
  with_bad_evaluation.push_back("trainer.eval_at_start=false");
  teacher_.reset();
  teacher_.emplace(dir_, teacher_model_, 0, std::vector<std::string>{"--max-logprobs", "64"});
  EXPECT_NE(Train(teacher_->endpoint(), &output, with_bad_evaluation), 0) << output;
  EXPECT_THAT(output, ::testing::HasSubstr("will refuse evaluations"));
  EXPECT_EQ(NewestCheckpoint("run"), 3) << output;
  ASSERT_EQ(Train(teacher_->endpoint(), &output, settings, {"--resume"}), 0) << output;
  EXPECT_EQ(Losses(dir_.File("run")), Losses(dir_.File("whole")));
  std::vector<int64_t> evaluated;
  for (const auto& row : Lines("metrics.jsonl")) {
    if (row.contains("eval/kl_to_teacher")) evaluated.push_back(row.at("step"));
  }
  EXPECT_EQ(evaluated, (std::vector<int64_t>{3, 6}));
}

TEST_F(TrainerWatchTest, TheTimelineOpensInAViewer) {
  std::string output;
  ASSERT_EQ(Train(teacher_->endpoint(), &output, {"trainer.trace_steps=3"}), 0) << output;
  const auto trace = nlohmann::json::parse(ReadFile(dir_.File("run/trace.json")));
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
  EXPECT_EQ(spans["rollout_wait"] > 0, true);
  EXPECT_EQ(spans["rollout"], 24);
  EXPECT_EQ(spans["teacher"], 24);
  EXPECT_EQ(spans["save"], 1);
}

// In one configuration the parameters dominate the memory, in the other the activations, without an
// overlap of rollouts and training.
TEST_F(TrainerWatchTest, TheMemoryPlanIsNearTheMeasuredPeak) {
  struct Case {
    const char* name;
    int64_t vocab_size, hidden_size, num_layers;
    std::vector<std::string> settings;
  };
  const Case cases[] = {
      {"parameters", 8192, 384, 4, {"trainer.mini_batch_size=2"}},
      {"ahead", 8192, 384, 4, {"trainer.mini_batch_size=2", "trainer.async_steps=1"}},
      {"beside",
       8192,
       384,
       4,
       {"trainer.mini_batch_size=2", "eval.measure=kl", "eval.mode=beside", "eval.num_prompts=8"}},
      {"activations",
       2048,
       128,
       6,
       {"data.max_response_length=112", "data.train_batch_size=8", "rollout.n=4",
        "trainer.mini_batch_size=8", "trainer.micro_batch_tokens=4096"}},
  };
  for (const Case& c : cases) {
    auto config = nlohmann::json::parse(ModelConfigText());
    config["vocab_size"] = c.vocab_size;
    config["hidden_size"] = c.hidden_size;
    config["intermediate_size"] = 3 * c.hidden_size;
    config["num_hidden_layers"] = c.num_layers;
    config["head_dim"] = c.hidden_size / 4;
    WriteFile(dir_.File("large.json"), config.dump());
    const std::string student = dir_.File(std::string("large_") + c.name);
    std::string output;
    ASSERT_EQ(Run({"sft", "--config", dir_.File("sft.yaml"), "--set",
                   Concat("model.config=", dir_.File("large.json")), "--set",
                   Concat("run.dir=", student), "--set", "trainer.total_steps=1"},
                  &output),
              0)
        << output;
    teacher_.reset();
    teacher_.emplace(dir_, student + "/model");
    std::vector<std::string> settings = {Concat("student.model=", student, "/model"),
                                         Concat("run.dir=", dir_.File(c.name)), "eval.measure=none",
                                         "trainer.total_steps=2"};
    settings.insert(settings.end(), c.settings.begin(), c.settings.end());
    ASSERT_EQ(Train(teacher_->endpoint(), &output, settings), 0) << output;
    std::vector<std::string> plan = TrainArguments(teacher_->endpoint(), settings);
    plan[0] = "plan";
    ASSERT_EQ(Run(plan, &output), 0) << output;
    int64_t planned = 0;
    std::istringstream lines(output);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("cpu ") || line.find("(limit)") != std::string::npos) continue;
      // The bytes are the first number after the name.
      planned += std::stoll(line.substr(line.find_first_of("0123456789")));
    }
    const double measured = LastMetric(c.name, "memory/host_peak_gb") * (int64_t{1} << 30);
    EXPECT_NEAR(static_cast<double>(planned) / measured, 1, 0.1) << c.name << "\n" << output;
  }
}

// No teacher is needed, and nothing is written.
TEST_F(TrainerWatchTest, APlanForADeviceThatIsTooSmallNamesTheLine) {
  const std::vector<std::string> plan = {"plan", "--config", dir_.File("train.yaml")};
  const auto for_device = [&](const std::string& memory, std::string* output) {
    std::vector<std::string> arguments = plan;
    arguments.insert(arguments.end(), {"--device-memory", memory});
    return Run(arguments, output);
  };
  std::string output;
  EXPECT_EQ(for_device("cuda:80GB", &output), 0) << output;
  EXPECT_THAT(output, HasSubstr("total on cuda: "));
  EXPECT_THAT(output, HasSubstr("optimizer moments"));
  EXPECT_THAT(output,
              HasSubstr(Concat("disk of run.dir ", dir_.File("run"), ": 3 checkpoints of ")));
  EXPECT_EQ(for_device("cuda:1GiB", &output), 71) << output;
  EXPECT_THAT(output, HasSubstr("training activations"));
  EXPECT_THAT(output, HasSubstr("The line that is too large is \"runtime\""));
  // A size without a kind of device is that of the run's own kind.
  for (const char* device : {"cpu", "auto"}) {
    EXPECT_EQ(Run({"plan", "--config", dir_.File("train.yaml"), "--device-memory", "24GiB", "--set",
                   Concat("trainer.device=", device)},
                  &output),
              0)
        << output;
    EXPECT_THAT(output, HasSubstr("total on cpu: ")) << device;
  }
  EXPECT_EQ(Run({"plan", "--config", dir_.File("train.yaml"), "--device-memory", "80GB", "--set",
                 "trainer.device=cuda"},
                &output),
            0)
      << output;
  EXPECT_THAT(output, HasSubstr("total on cuda: "));
  EXPECT_EQ(for_device("much", &output), 64);
  EXPECT_THAT(output, HasSubstr("--device-memory"));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("run")));
}

// The limit applies to the plan and to the run, whatever memory the machine has.
TEST_F(TrainerWatchTest, ALimitOfMemoryOnTheCpuRefusesThePlanAndTheRun) {
  std::string output;
  const std::vector<std::string> limit = {"--set", "trainer.cpu_memory_limit=1MiB"};
  for (const char* command : {"plan", "train"}) {
    std::vector<std::string> arguments = {command, "--config", dir_.File("train.yaml")};
    arguments.insert(arguments.end(), limit.begin(), limit.end());
    EXPECT_EQ(Run(arguments, &output), 71) << output;
    EXPECT_THAT(output, HasSubstr("which exceeds its 1.0 MiB (cpu_memory_limit)")) << command;
  }
  EXPECT_FALSE(std::filesystem::exists(dir_.File("run/checkpoints")));
}

TEST_F(TrainerWatchTest, APlanWithCudaGraphsHasALineForThem) {
  std::vector<std::string> plan = {"plan", "--config", dir_.File("train.yaml"), "--set",
                                   "rollout.cuda_graphs=true"};
  std::string output;
  EXPECT_EQ(Run(plan, &output), 64);
  EXPECT_THAT(output, HasSubstr("rollout.cuda_graphs = true: the device is a CPU"));
  plan.insert(plan.end(), {"--device-memory", "cuda:80GB"});
  EXPECT_EQ(Run(plan, &output), 0) << output;
  EXPECT_THAT(output, ::testing::ContainsRegex("cuda +CUDA graphs"));
}

TEST_F(TrainerWatchTest, APlanWithOffloadHasAHost) {
  std::vector<std::string> plan = {"plan", "--config", dir_.File("train.yaml"), "--set",
                                   "optimizer.offload=true"};
  std::string output;
  EXPECT_EQ(Run(plan, &output), 64);
  EXPECT_THAT(output, HasSubstr("optimizer.offload = true: the device is a CPU"));
  plan.insert(plan.end(), {"--device-memory", "cuda:80GB"});
  EXPECT_EQ(Run(plan, &output), 0) << output;
  EXPECT_THAT(output, ::testing::ContainsRegex("cpu +optimizer moments"));
  EXPECT_THAT(output, HasSubstr("total on the host: "));
  plan.insert(plan.end(), {"--teraflops", "400", "--memory-gb-per-s", "2700"});
  EXPECT_EQ(Run(plan, &output), 64);
  EXPECT_THAT(output, HasSubstr("--host-gb-per-s is needed"));
  plan.insert(plan.end(), {"--host-gb-per-s", "200"});
  EXPECT_EQ(Run(plan, &output), 0) << output;
  EXPECT_THAT(output, HasSubstr("bytes of the host's memory"));
}

}  // namespace
}  // namespace taopd::testing
