// Tests of when a run evaluates, and of the consequences of an evaluation.
#include "trainer/loop/run_evaluations.h"

#include <absl/time/clock.h>

#include "common/io/file.h"
#include "tests/support/files.h"
#include "tests/trainer/step/tiny_training.h"
#include "tests/trainer/teacher/scripted_teacher.h"

namespace taopd::testing {
namespace {

// The best evaluation is that of the fewest records.
class RunEvaluationsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.eval.measure = EvalMeasure::kKl;
    config_.trainer.eval_every = 4;
    config_.trainer.best_metric = "eval/n";
    ASSERT_NO_FATAL_FAILURE(StartTinyRun(&run_));
    rollouts_.local.emplace(nullptr);  // nothing is generated
  }
  void GoTo(int64_t step) {
    run_.state().step = step;
    lifecycle_.MarkChanged();
  }
  absl::Status Evaluate(int64_t step, size_t num_records) {
    data_.problems.assign(num_records, PromptRecord{.prompt_ids = {5, 6}, .response_ids = {7, 2}});
    GoTo(step);
    return evaluations_.Run();
  }
  void RollBack(int64_t step) {
    ASSERT_OK(run_.RollBack(step));
    ASSERT_OK(evaluations_.Restore());
  }
  bool HasCheckpoint(int64_t step) { return !run_.checkpoints().Find(step).value_or("").empty(); }
  std::string Best() { return ReadFileToString(dir_.File("run/best.json")).value_or("none"); }

  const TempDir dir_;
  TrainConfig config_ = TinyConfig();
  CheckpointedRun run_{{.run_dir = dir_.File("run"),
                        .total_steps = 10,
                        .watched_metric = "eval/n",
                        .dtype = "float32",
                        .device = "cpu"}};
  RunControl control_;
  RunTrace trace_{0, ""};
  TrainingData data_;
  RolloutParts rollouts_;
  TeacherParts teacher_ = {.client = MakeEngineTeacher(MakeTinyTeacher())};
  RunLifecycle lifecycle_{&run_, &control_, {.start = absl::Now()}};
  StepContext step_;
  RunEvaluations evaluations_{{config_, run_, control_, trace_, data_, rollouts_, teacher_, step_},
                              &lifecycle_};
};

TEST_F(RunEvaluationsTest, EndTheRunEarlyAfterSomeThatAreNoBetter) {
  evaluations_.Observe({.values = {{0, 1.0}, {4, 3.0}, {8, 1.0}}});
  const auto ends = [&](EvalMode mode, int64_t limit, int64_t step) {
    config_.eval.mode = mode;
    config_.trainer.early_stop_evaluations = limit;
    GoTo(step);
    return evaluations_.ends_run();
  };
  EXPECT_TRUE(ends(EvalMode::kBlocking, 2, 8)) << "an equal value is no better";
  EXPECT_FALSE(ends(EvalMode::kBlocking, 3, 8));
  EXPECT_FALSE(ends(EvalMode::kBlocking, 0, 8));
  EXPECT_TRUE(ends(EvalMode::kBlocking, 0, 10)) << "the last step";
  EXPECT_FALSE(ends(EvalMode::kBeside, 2, 8)) << "that of step 8 may still be open";
  EXPECT_TRUE(ends(EvalMode::kBeside, 1, 8));
  EXPECT_FALSE(ends(EvalMode::kBeside, 1, 9)) << "none is due";
}

TEST_F(RunEvaluationsTest, TheBestIsNamedAndItsCheckpointKept) {
  ASSERT_OK(Evaluate(2, 3));
  ASSERT_OK(Evaluate(3, 3));
  EXPECT_FALSE(HasCheckpoint(3)) << "an equal value is no better";
  EXPECT_EQ(Best(), "{\"step\":2,\"metric\":\"eval/n\",\"value\":3.0}\n");
  ASSERT_OK(Evaluate(4, 2));
  for (const int64_t step : {5, 6, 7}) {
    GoTo(step);
    ASSERT_OK(lifecycle_.Save());
  }
  EXPECT_TRUE(HasCheckpoint(4));
  EXPECT_FALSE(HasCheckpoint(2));
  EXPECT_EQ(Best(), "{\"step\":4,\"metric\":\"eval/n\",\"value\":2.0}\n");
}

TEST_F(RunEvaluationsTest, AfterARollBackTheBestThatHasACheckpointIsNamed) {
  ASSERT_OK(Evaluate(2, 1));
  GoTo(4);
  ASSERT_OK(lifecycle_.Save());
  ASSERT_OK(RemoveAll(dir_.File("run/checkpoints/step-000002")));
  ASSERT_NO_FATAL_FAILURE(RollBack(4));
  EXPECT_EQ(Best(), "none");
  ASSERT_OK(Evaluate(4, 2));
  ASSERT_NO_FATAL_FAILURE(RollBack(4));
  EXPECT_THAT(Best(), HasSubstr("\"step\":4,"));
}

TEST_F(RunEvaluationsTest, NoneIsNamedWhileTheStartIsTheBest) {
  ASSERT_OK(Evaluate(0, 2));
  ASSERT_OK(lifecycle_.Save());
  ASSERT_OK(Evaluate(4, 3));
  ASSERT_OK(lifecycle_.Save());
  EXPECT_EQ(Best(), "none");
  ASSERT_NO_FATAL_FAILURE(RollBack(4));
  EXPECT_EQ(Best(), "none");
}

TEST_F(RunEvaluationsTest, WeightsWithinAStepAreNotThoseOfTheStepBefore) {
  data_.problems.assign(1, PromptRecord{.prompt_ids = {5, 6}, .response_ids = {7, 2}});
  GoTo(4);
  lifecycle_.SetPending(std::make_shared<const PendingStep>());
  ASSERT_OK(evaluations_.RunIfMissing());
  EXPECT_EQ(Best(), "none");
  lifecycle_.SetPending(nullptr);
  ASSERT_OK(evaluations_.RunIfMissing());
  EXPECT_THAT(Best(), HasSubstr("\"step\":4,"));
}

TEST_F(RunEvaluationsTest, AFailureSavesTheStepAndHasTheCodeOfItsCause) {
  int64_t step = 0;
  for (const auto& [cause, code] :
       {std::pair(kUnavailable, kExitUnavailable), std::pair(kInternal, kExitInternal),
        std::pair(kAborted, kExitStorage), std::pair(kInvalidArgument, kExitData),
        std::pair(kResourceExhausted, kExitOutOfMemory)}) {
    const absl::Status error(cause, "as told");
    teacher_.client = std::make_unique<ScriptedTeacher>(
        [error](const TeacherRequest&, const ScriptedTeacher::Done& done) { done(error); });
    const absl::Status failed = Evaluate(++step, 1);
    EXPECT_EQ(ExitCodeOf(failed), code) << failed;
    EXPECT_THAT(std::string(failed.message()), HasSubstr("as told"));
    EXPECT_TRUE(HasCheckpoint(step)) << failed;
  }
}

}  // namespace
}  // namespace taopd::testing
