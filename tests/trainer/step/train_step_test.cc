// Tests of the step on tiny models with real engines. The losses of 20 steps are committed: a code
// change that is not meant to change the training must reproduce them bit for bit on the machine
// type that wrote them (golden/README.md).
#include "trainer/step/train_step.h"

#include <absl/synchronization/mutex.h>
#include <absl/synchronization/notification.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"
#include "tests/trainer/teacher/scripted_teacher.h"
#include "trainer/step/loss/forward_backward.h"
#include "trainer/step/scored_batch.h"

namespace taopd::testing {
namespace {

// Returns the properties that determine the rounding of the libraries: vendor, family, model and
// the instruction set in use.
std::string Processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string description = at::get_cpu_capability(), line;
  while (std::getline(file, line) && !line.empty()) {
    for (const char* key : {"vendor_id", "cpu family", "model\t"}) {
      if (line.rfind(key, 0) == 0) description += "," + line.substr(line.find(':') + 1);
    }
  }
  return description;
}

// Another processor or library version rounds differently; 20 steps amplify that. Losses are
// about 1.
constexpr double kOtherMachineTolerance = 1e-3;

TEST(TrainStep, TwentyStepsReproduceTheCommittedLosses) {
  const std::vector<double> losses = RunSteps(TinySetting(), 20);
  const std::string path = SourcePath("tests/trainer/step/golden/losses.json");
  if (std::getenv("TAOPD_WRITE_GOLDEN") != nullptr) {
    WriteFile(path, nlohmann::json{{"processor", Processor()}, {"losses", losses}}.dump(1) + "\n");
    GTEST_SKIP() << "wrote " << path;
  }
  const auto golden = nlohmann::json::parse(ReadFile(path));
  const auto expected = golden.at("losses").get<std::vector<double>>();
  ASSERT_EQ(losses.size(), expected.size());
  const bool same_machine = golden.at("processor") == Processor();
  for (size_t i = 0; i < losses.size(); ++i) {
    if (same_machine) {
      EXPECT_EQ(losses[i], expected[i]) << "step " << i;
    } else {
      EXPECT_NEAR(losses[i], expected[i], kOtherMachineTolerance) << "step " << i;
    }
  }
  EXPECT_LT(losses.back(), 0.8 * losses.front());  // and it learns
}

TEST(TrainStep, ArrivalOrderOfScoresDoesNotMatter) {
  std::shared_ptr<Decoder> plain, shuffled;
  const std::vector<double> expected = RunSteps(TinySetting(), 4, &plain);
  for (uint64_t seed : {1, 2}) {
    const TinySetting setting = {.shuffle_seed = seed};
    EXPECT_EQ(RunSteps(setting, 4, &shuffled), expected);
    EXPECT_TRUE(SameWeights(*plain, *shuffled));
  }
}

// A step has two mini-batches of one to many micro-batches. The weights of a mini-batch's rows do
// not depend on the micro-batches.
TEST(TrainStep, MicroBatchesDoNotChangeTheGradient) {
  // Sums have another order. Losses were seen to differ by up to 2e-8 (relative), and weights by up
  // to 6e-7, because AdamW divides small gradients by their size.
  constexpr double kLossTolerance = 1e-5, kWeightTolerance = 1e-4;
  for (const Aggregation aggregation :
       {Aggregation::kTokenMean, Aggregation::kSeqMeanTokenMean, Aggregation::kSeqMeanTokenSum}) {
    std::shared_ptr<Decoder> small, large;
    TinySetting setting;
    setting.config.objective.aggregation = aggregation;
    setting.config.trainer.micro_batch_tokens = 1;  // one sequence each
    const std::vector<double> losses = RunSteps(setting, 2, &small);
    setting.config.trainer.micro_batch_tokens = 1 << 20;
    const std::vector<double> expected = RunSteps(setting, 2, &large);
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], expected[i], kLossTolerance * expected[i]) << NameOf(aggregation);
    const auto a = small->Parameters(), b = large->Parameters();
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(at::allclose(a[i].second, b[i].second, kWeightTolerance, kWeightTolerance))
          << NameOf(aggregation) << a[i].first;
    }
  }
}

TEST(TrainStep, RecomputationChangesNoBit) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    std::shared_ptr<Decoder> kept;
    TinySetting setting = {.dtype = dtype};
    setting.config.trainer.recompute = RecomputeChoice::kNone;
    const std::vector<double> expected = RunSteps(setting, 2, &kept);
    for (const RecomputeChoice recompute : {RecomputeChoice::kAttention, RecomputeChoice::kFull}) {
      std::shared_ptr<Decoder> recomputed;
      setting.config.trainer.recompute = recompute;
      EXPECT_EQ(RunSteps(setting, 2, &recomputed), expected) << dtype << " " << NameOf(recompute);
      EXPECT_TRUE(SameWeights(*kept, *recomputed)) << dtype << " " << NameOf(recompute);
    }
  }
}

TEST(TrainStep, EverySupportTrains) {
  for (const SupportChoice choice :
       {SupportChoice::kTeacher, SupportChoice::kStudent, SupportChoice::kUnion}) {
    const std::string support = NameOf(choice);
    TinySetting setting;
    setting.config.objective.support = choice;
    setting.config.objective.student_top_k = 3;
    std::map<std::string, double> metrics;
    const std::vector<double> losses = RunSteps(setting, 12, nullptr, &metrics);
    EXPECT_LT(losses.back(), losses.front()) << support;
    EXPECT_NEAR(metrics.at("policy/student_mass") + metrics.at("policy/student_tail"), 1, 1e-5)
        << support;
    EXPECT_NEAR(metrics.at("policy/teacher_mass") + metrics.at("policy/teacher_tail"), 1, 1e-5)
        << support;
    EXPECT_EQ(metrics.at("policy/derived_tails"), 0) << support;
    EXPECT_EQ(metrics.count("policy/overlap"), std::string(support) != "student" ? 1u : 0u);
    if (metrics.count("policy/overlap")) {
      EXPECT_GT(metrics.at("policy/overlap"), 0.1) << support;
      EXPECT_LE(metrics.at("policy/overlap"), 1) << support;
    }
  }
}

// A single response per prompt and a single mini-batch are the smallest shapes of a step.
TEST(TrainStep, TheSmallestShapesAndBFloat16Train) {
  TinySetting smallest;
  smallest.config.rollout.n = 1;
  smallest.config.trainer.mini_batch_size = 6;
  for (const TinySetting& setting : {smallest, TinySetting{.dtype = "bfloat16"}}) {
    const std::vector<double> losses = RunSteps(setting, 12);
    EXPECT_LT(losses.back(), losses.front()) << setting.dtype;
  }
}

// ---- Mini-batches that are not finite -----------------------------------------------------------

// A teacher that returns NaN as the log-probs of some rollouts. The real client refuses such
// replies; here they stand for any cause of a loss that is not finite.
ScriptedTeacher Poisoning(TeacherClient* inner, std::set<std::string> request_ids) {
  return ScriptedTeacher([=](TeacherRequest request, ScriptedTeacher::Done done) {
    const bool poisoned = request_ids.contains(request.request_id);
    inner->Score(std::move(request), [=](absl::StatusOr<TeacherScores> scores) {
      if (poisoned) scores->log_probs.assign(scores->log_probs.size(), std::nanf(""));
      done(std::move(scores));
    });
  });
}

// Returns the loss of the rollouts [begin, end) of the first step under the initial weights.
double LossOfRollouts(int64_t begin, int64_t end) {
  TinyTraining training((TinySetting()));
  const StepContext& context = training.context;
  const auto batch =
      training.NextScored(MakeSupportOptions(*context.config, kTinyVocabulary), "step-1");
  std::vector<int64_t> lengths;
  for (const ScoredRollout* item : batch->Items(begin, end)) {
    lengths.push_back(static_cast<int64_t>(item->rollout.response_ids.size()));
  }
  RowSums sums;
  EXPECT_OK(ForwardBackward(context.student, context.head, batch->Items(begin, end),
                            SequenceWeights(context.aggregation, lengths), &sums));
  return sums.weighted_loss;
}

TEST(TrainStep, AMiniBatchThatIsNotFiniteIsSkippedAlone) {
  struct Case {
    const char* poisoned;  // a rollout of one mini-batch
    int64_t good_begin, good_end;
  };
  for (const Case& c : {Case{"step-1-2", 9, 18}, Case{"step-1-17", 0, 9}}) {
    TinyTraining training((TinySetting()));
    ScriptedTeacher teacher = Poisoning(training.teacher(), {c.poisoned});
    training.context.teacher = &teacher;
    const StepResult result = training.Step(0, 20);
    EXPECT_EQ(result.num_skipped_updates, 1) << c.poisoned;
    EXPECT_EQ(training.optimizer().num_updates(), 1) << c.poisoned;
    EXPECT_FALSE(SameWeights(*training.student(), *MakeTinyStudent())) << c.poisoned;
    for (const auto& [name, value] : result.metrics) {
      EXPECT_TRUE(std::isfinite(value)) << c.poisoned << " " << name;
    }
    // The means are those of the other mini-batch, which used the initial weights.
    const auto metrics = ByName(result);
    const double expected = LossOfRollouts(c.good_begin, c.good_end);
    EXPECT_NEAR(metrics.at("loss/mean"), expected, 1e-5 * expected) << c.poisoned;
    EXPECT_EQ(metrics.at("optim/skipped_updates"), 1) << c.poisoned;
    // The next step is not affected.
    EXPECT_EQ(training.Step(1, 20).num_skipped_updates, 0) << c.poisoned;
    EXPECT_EQ(training.optimizer().num_updates(), 3) << c.poisoned;
  }
}

// The loss of the first micro-batch is finite, and one parameter's gradient is not.
TEST(TrainStep, AGradientThatIsNotFiniteSkipsItsMiniBatch) {
  TinyTraining training((TinySetting()));
  const at::Tensor weight = training.student()->Parameters().front().second;
  int64_t num_calls = 0;
  // The hook does not get the gradient, which the layers add to weight.grad() themselves.
  weight.register_hook([&](const at::Tensor&) {
    if (num_calls++ == 0) weight.grad().fill_(std::nan(""));
  });
  const StepResult result = training.Step(0, 20);
  EXPECT_GT(num_calls, 1);
  EXPECT_EQ(result.num_skipped_updates, 1);
  EXPECT_EQ(training.optimizer().num_updates(), 1);
  EXPECT_TRUE(std::isfinite(ByName(result).at("loss/mean")));
  for (const auto& [name, parameter] : training.student()->Parameters()) {
    EXPECT_TRUE(at::isfinite(parameter).all().item<bool>()) << name;
  }
}

// The report names the response and its token. The files can be inspected, and their number is
// bounded.
TEST(TrainStep, AMiniBatchThatIsSkippedIsNamedAndWrittenAside) {
  TinyTraining training((TinySetting()));
  ScriptedTeacher teacher = Poisoning(training.teacher(), {"step-1-2", "step-1-17"});
  training.context.teacher = &teacher;
  const TempDir dir;
  std::vector<BadBatch> reports;
  training.context.on_bad_batch = [&](const BadBatch& bad) {
    reports.push_back(bad);
    for (const char* name : {"one", "two"}) {
      EXPECT_OK(WriteBadBatch(bad, dir.File(name), name == std::string("one") ? 1 : 2));
    }
    EXPECT_OK(WriteBadBatch(bad, dir.File("none"), 0));
  };
  const std::vector<const PromptRecord*> prompts = training.NextPrompts();
  ASSERT_OK(TrainOneStep(training.context, 0, 1e-3, prompts));
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].mini_batch, 0);
  EXPECT_EQ(reports[0].bad_sequence, 2);
  EXPECT_EQ(reports[0].bad_row, 0);
  EXPECT_EQ(reports[0].prompt_id, "prompt-" + std::to_string(prompts[0]->prompt_ids.size()));
  EXPECT_EQ(reports[1].mini_batch, 1);
  EXPECT_EQ(reports[1].bad_sequence, 8);  // rollout 17 of the step
  EXPECT_TRUE(std::isnan(reports[1].loss));
  EXPECT_FALSE(std::filesystem::exists(dir.File("none")));
  EXPECT_FALSE(std::filesystem::exists(dir.File("one/step-000001-mini-1.json")));
  ASSERT_TRUE(std::filesystem::exists(dir.File("two/step-000001-mini-1.json")));
  const auto json = nlohmann::json::parse(ReadFile(dir.File("one/step-000001-mini-0.json")));
  EXPECT_EQ(json["loss"], "nan");
  EXPECT_EQ(json["bad_sequence"], 2);
  ASSERT_EQ(json["sequences"].size(), 9u);
  EXPECT_EQ(json["sequences"][2]["teacher_log_probs"][0], "nan");
  EXPECT_TRUE(json["sequences"][0]["teacher_log_probs"][0].is_number());
}

TEST(TrainStep, AStepWithoutAnUpdateSaysSo) {
  TinyTraining training((TinySetting()));
  ScriptedTeacher teacher = Poisoning(training.teacher(), {"step-1-0", "step-1-9"});
  training.context.teacher = &teacher;
  const StepResult result = training.Step(0, 20);
  EXPECT_EQ(result.num_skipped_updates, 2);
  EXPECT_EQ(result.rollouts.size(), 18u);
  EXPECT_TRUE(SameWeights(*training.student(), *MakeTinyStudent()));
  const auto metrics = ByName(result);
  for (const char* name : {"loss/mean", "loss/row_mean", "loss/grad_norm", "policy/entropy"}) {
    EXPECT_TRUE(std::isnan(metrics.at(name))) << name;
  }
  EXPECT_GT(metrics.at("rollout/tokens"), 0);
}

// ---- Failures and waiting -----------------------------------------------------------------------

// Loses the teacher after the first mini-batch has been scored, before any update.
TEST(TrainStep, ATeacherLostAfterTheFirstMiniBatchLeavesTheWeightsUntouched) {
  TinyTraining training((TinySetting()));
  absl::Mutex mutex;
  ScriptedTeacher::Done lost;
  ScriptedTeacher teacher([&](TeacherRequest request, ScriptedTeacher::Done done) {
    if (request.request_id != "step-1-17")
      return training.teacher()->Score(std::move(request), std::move(done));
    absl::MutexLock lock(&mutex);
    lost = std::move(done);  // answered only when the step waits for it
  });
  training.context.teacher = &teacher;
  training.context.on_wait = [&] {
    ScriptedTeacher::Done done;
    {
      absl::MutexLock lock(&mutex);
      done = std::exchange(lost, nullptr);
    }
    if (done) done(Unavailable("lost"));
    return absl::OkStatus();
  };
  EXPECT_ERROR(TrainOneStep(training.context, 0, 1e-3, training.NextPrompts()), kUnavailable,
               "lost");
  EXPECT_EQ(training.optimizer().num_updates(), 0);
  EXPECT_TRUE(SameWeights(*training.student(), *MakeTinyStudent()));
}

// The engine's threads read the weights and pass rollouts to the teacher's client until the last
// one has ended. So an exception must not leave the step earlier.
TEST(TrainStep, NothingLeavesAStepBeforeTheRolloutsHaveEnded) {
  for (const bool throws : {false, true}) {
    TinyTraining training((TinySetting()));
    absl::Notification released;
    std::atomic<int64_t> num_open = 18;
    PassedRollouts rollouts(training.context.rollout_engine,
                            [&](int64_t, absl::StatusOr<Rollout> rollout) {
                              released.WaitForNotification();
                              --num_open;
                              return rollout;
                            });
    training.context.rollout_engine = &rollouts;
    training.context.on_wait = [&]() -> absl::Status {
      released.Notify();
      if (throws) throw std::runtime_error("out of memory");
      return absl::CancelledError("stop");
    };
    const auto step = [&] {
      EXPECT_ERROR(TrainOneStep(training.context, 0, 1e-3, training.NextPrompts()), kCancelled,
                   "stop");
    };
    if (throws) {
      EXPECT_THROW(step(), std::runtime_error);
    } else {
      step();
    }
    EXPECT_EQ(num_open, 0);
  }
}

// ---- Time ---------------------------------------------------------------------------------------

TEST(TrainStep, ThePhasesAddUpToTheStep) {
  TinyTraining training((TinySetting()));
  Timeline timeline;
  training.context.timeline = &timeline;
  const auto metrics = ByName(training.Step(0, 20));
  double sum = 0;
  for (size_t i = 0; i < static_cast<size_t>(Phase::kNumPhases); ++i) {
    const double seconds = metrics.at(PhaseMetric(static_cast<Phase>(i)));
    EXPECT_GE(seconds, 0) << PhaseMetric(static_cast<Phase>(i));
    sum += seconds;
  }
  for (const char* name : {"time/forward_s", "time/head_s", "time/backward_s", "time/optimizer_s",
                           "time/rollout_wait_s"}) {
    EXPECT_GT(metrics.at(name), 0) << name;
  }
  EXPECT_LE(sum, metrics.at("time/step_s"));
  EXPECT_NEAR(metrics.at("time/train_s"),
              metrics.at("time/step_s") - metrics.at("time/rollout_wait_s") -
                  metrics.at("time/teacher_wait_s"),
              1e-9);
  // There is one span for each rollout, each scoring and each phase.
  const auto trace = nlohmann::json::parse(timeline.Json());
  std::map<std::string, int> spans;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") ++spans[event.at("cat").get<std::string>()];
  }
  EXPECT_EQ(spans["rollout"], 18);
  EXPECT_EQ(spans["teacher"], 18);
  EXPECT_GE(spans["training"], 10);
}

}  // namespace
}  // namespace taopd::testing
