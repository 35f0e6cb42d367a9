#include "trainer/student/self_teacher.h"

#include <atomic>
#include <cmath>
#include <new>

#include "tests/support/failing_tensors.h"
#include "tests/support/fake_teachers.h"
#include "tests/support/files.h"
#include "tests/trainer/step/tiny_training.h"
#include "tests/trainer/teacher/example_scores.h"

namespace taopd::testing {
namespace {

Student TinyStudentOf(const std::string& dtype, bool keeps_average) {
  return MakeTrainedStudent(dtype, {.keeps_average = keeps_average});
}

SelfTeacherOptions Options(TeacherWeights weights) {
  SelfTeacherOptions options = {.weights = weights};
  options.engine.max_model_len = 32;
  options.engine.kv_cache_bytes = 0;
  return options;
}

// Moves all weights as an update does.
void Move(const Student& student, double by) {
  const at::NoGradGuard no_grad;
  for (auto& [name, parameter] : student.decoder->Parameters())
    at::Tensor(parameter).add_(at::full_like(parameter, by));
  student.optimizer->CopyParametersToMasters();
}

TeacherRequest Request() {
  return {.token_ids = {4, 9, 3, 30, 12, 7},
          .score_start = 2,
          .top_k = 4,
          .entropy = true,
          .num_candidates = 1,
          .candidate_ids = {1, 2, 3, 4}};
}

TeacherScores Scores(TeacherClient* client) {
  const absl::StatusOr<TeacherScores> scores = ScoreOne(client, Request());
  EXPECT_TRUE(scores.ok()) << scores.status();
  return scores.value_or(TeacherScores());
}

TEST(AverageOfWeights, FollowsTheRecurrenceInFloat64) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const Student student = TinyStudentOf(dtype, true);
    const auto [name, parameter] = student.decoder->Parameters()[0];
    at::Tensor expected = parameter.detach().to(at::kDouble).flatten();
    for (int step = 0; step < 50; ++step) {
      Move(student, 0.01 * std::sin(step));
      student.optimizer->UpdateAverage(0.9);
      expected = 0.9 * expected + 0.1 * parameter.detach().to(at::kDouble).flatten();
    }
    bool is_found = false;
    for (const AdamW::StateSlice& slice : student.optimizer->State()) {
      if (slice.name != "average." + name) continue;
      is_found = true;
      // Each step rounds three times in float32 (6e-8), and the average forgets nine tenths slowly.
      EXPECT_LT((slice.values.to(at::kDouble) - expected).abs().max().item<double>(), 5e-6);
    }
    EXPECT_TRUE(is_found) << name;
  }
}

// An update that fails between two of its parameters leaves an average that belongs to no step.
// The caller sees that something has changed, and does not save it.
TEST(AverageOfWeights, AnUpdateThatFindsNoMemoryCountsAsAChange) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const Student student = TinyStudentOf(dtype, true);
    AdamW& optimizer = *student.optimizer;
    Move(student, 0.5);
    const int64_t updates = optimizer.num_updates();
    for (const int64_t num_left : {0, 5}) {
      const int64_t before = optimizer.num_changes();
      {
        const FailingTensors failing(num_left);
        EXPECT_THROW(optimizer.UpdateAverage(0.9), std::bad_alloc);
      }
      EXPECT_GT(optimizer.num_changes(), before);
    }
    const int64_t before = optimizer.num_changes();
    optimizer.ClearGradients();
    EXPECT_EQ(optimizer.num_changes(), before);
    EXPECT_EQ(optimizer.num_updates(), updates);
  }
}

TEST(AverageOfWeights, IsSavedAndMayBeMissingOrTooMuch) {
  const TempDir dir;
  const Student with = TinyStudentOf("bfloat16", true), without = TinyStudentOf("bfloat16", false);
  Move(with, 0.5);
  with.optimizer->UpdateAverage(0.75);
  const auto average_of = [](const Student& student) {
    std::vector<at::Tensor> values;
    for (const AdamW::StateSlice& slice : student.optimizer->State())
      if (slice.name.starts_with("average.")) values.push_back(slice.values.clone());
    return at::cat(values);
  };
  const at::Tensor saved = average_of(with);
  for (const auto& [student, name] : {std::pair(&with, "with"), std::pair(&without, "without")}) {
    ASSERT_OK(student->optimizer->StateToSave(/*copies=*/false).Write(dir.File(name)));
  }
  with.optimizer->UpdateAverage(0);
  EXPECT_FALSE(at::equal(average_of(with), saved));
  ASSERT_TRUE(with.optimizer->Load(dir.File("with")).ok());
  EXPECT_TRUE(at::equal(average_of(with), saved));
  EXPECT_TRUE(without.optimizer->Load(dir.File("with")).ok());
  // A state without an average starts one from the weights.
  ASSERT_TRUE(with.optimizer->Load(dir.File("without")).ok());
  std::vector<at::Tensor> masters;
  for (const AdamW::StateSlice& slice : with.optimizer->State())
    if (slice.name.starts_with("master.")) masters.push_back(slice.values);
  EXPECT_TRUE(at::equal(average_of(with), at::cat(masters)));
}

TEST(SelfTeacher, LiveAveragedAndRefreshedWeightsScoreAsAnEngineOverThem) {
  const std::unique_ptr<ProcessGroup> alone = ProcessGroup::Alone();
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const TeacherWeights weights : {TeacherWeights::kLive, TeacherWeights::kStart}) {
      SCOPED_TRACE(Concat(dtype, " ", NameOf(weights)));
      SelfTeacherOptions options = Options(weights);
      options.refresh_every = weights == TeacherWeights::kStart ? 2 : 0;
      const Student student = TinyStudentOf(dtype, true);
      SelfTeacher self(options, &student, alone.get());
      EngineTeacherClient client([&] { return self.Start(); });
      ASSERT_TRUE(client.Connect(absl::Seconds(1)).ok());
      const auto present = MakeEngineTeacher(student.decoder);
      const std::vector<float> before = Scores(&client).log_probs;
      EXPECT_EQ(before, Scores(present.get()).log_probs);
      Move(student, 0.05);
      ASSERT_TRUE(self.UpdateAfterStep(1).ok());
      const TeacherScores after_one = Scores(&client);
      EXPECT_EQ(after_one.log_probs == before, weights == TeacherWeights::kStart);
      ASSERT_TRUE(self.UpdateAfterStep(2).ok());
      const TeacherScores after_two = Scores(&client);
      EXPECT_NE(after_two.log_probs, before);
      ExpectSameBits(after_two, Scores(present.get()));
    }
  }
}

TEST(EngineTeacherClient, RefusesWhatItCannotScore) {
  const std::unique_ptr<ProcessGroup> alone = ProcessGroup::Alone();
  const Student student = TinyStudentOf("float32", false);
  SelfTeacher self(Options(TeacherWeights::kLive), &student, alone.get());
  EngineTeacherClient client([&] { return self.Start(); });
  absl::Status status;
  const auto keep = [&](absl::StatusOr<TeacherScores> answer) { status = answer.status(); };
  client.Score(Request(), keep);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  ASSERT_TRUE(client.Connect(absl::Seconds(1)).ok());
  TeacherRequest request = Request();
  request.token_ids.resize(40, 5);
  client.Score(request, keep);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(client.stats().failures, 2u);
  EXPECT_EQ(client.stats().in_flight, 0);
}

TEST(EngineTeacherClient, AnswersOpenRequestsWhenItCloses) {
  const std::unique_ptr<ProcessGroup> alone = ProcessGroup::Alone();
  const Student student = TinyStudentOf("float32", false);
  SelfTeacher self(Options(TeacherWeights::kLive), &student, alone.get());
  std::atomic<int> num_answers = 0, num_wrong = 0;
  {
    EngineTeacherClient client([&] { return self.Start(); });
    ASSERT_TRUE(client.Connect(absl::Seconds(1)).ok());
    for (int i = 0; i < 2000; ++i) {
      client.Score(Request(), [&](absl::StatusOr<TeacherScores> answer) {
        ++num_answers;
        if (!answer.ok() && !absl::IsCancelled(answer.status())) ++num_wrong;
      });
    }
  }
  EXPECT_EQ(num_answers, 2000);
  EXPECT_EQ(num_wrong, 0);
}

}  // namespace
}  // namespace taopd::testing
