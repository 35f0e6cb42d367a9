// Tests of the checks of a teacher before the first step.
#include "trainer/setup/connect_teacher.h"

#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"
#include "tests/trainer/teacher/scripted_teacher.h"

namespace taopd::testing {
namespace {

class TeacherFitTest : public ::testing::Test {
 protected:
  TeacherFitTest() {
    student_.decoder = MakeTinyStudent();
    teacher_.model_name = "big";
    teacher_.max_model_len = teacher_.max_top_k = 1 << 20;
    teacher_.supports_temperature = true;
    config_.data.max_prompt_length = config_.data.max_response_length = 4;
    config_.teacher.top_k = 4;
  }
  // Returns the log on a teacher with these end-of-sequence ids.
  std::string LogOf(std::vector<int32_t> ids) {
    teacher_.eos_token_ids = std::move(ids);
    ::testing::internal::CaptureStderr();
    EXPECT_OK(CheckTeacherFits(config_, client_, teacher_, student_));
    return ::testing::internal::GetCapturedStderr();
  }
  TrainConfig config_;
  ScriptedTeacher client_{nullptr};  // it gets no requests
  TeacherInfo teacher_;
  Student student_;
};

TEST_F(TeacherFitTest, OtherEndTokensAreNamed) {
  const std::vector<int32_t> own = student_.decoder->config().eos_token_ids;
  ASSERT_FALSE(own.empty());
  EXPECT_THAT(LogOf(own), Not(HasSubstr("end a text")));
  EXPECT_THAT(LogOf({}), Not(HasSubstr("end a text"))) << "vLLM does not say";
  std::vector<int32_t> reversed(own.rbegin(), own.rend());
  EXPECT_THAT(LogOf(reversed), Not(HasSubstr("end a text")));

  const std::string other = LogOf({31, 32});
  EXPECT_THAT(other, HasSubstr("teacher and student end a text with different tokens"));
  EXPECT_THAT(other, HasSubstr("only_teacher=\"31, 32\""));
  EXPECT_THAT(other, HasSubstr(Concat("only_student=", own[0])));
  std::vector<int32_t> more = own;
  more.push_back(33);
  EXPECT_THAT(LogOf(more), HasSubstr("only_teacher=33 only_student=none"));
}

TEST_F(TeacherFitTest, NoPositionComparesMoreTokensThanTheVocabularyHas) {
  teacher_.max_candidates = 1 << 20;
  const int64_t size = student_.decoder->config().vocab_size;
  const auto check = [&] { return CheckTeacherFits(config_, client_, teacher_, student_); };
  config_.objective.support = SupportChoice::kUnion;
  config_.objective.student_top_k = size - 4;
  EXPECT_OK(check());
  config_.objective.student_top_k = size - 3;
  EXPECT_ERROR(check(), kFailedPrecondition,
               Concat("teacher.top_k + objective.student_top_k = ", size + 1,
                      " exceeds the vocabulary of ", size));
  config_.objective.support = SupportChoice::kTeacher;
  config_.eval.kl_top_k = size + 1;
  EXPECT_OK(check());  // eval.measure is not kl
  config_.eval.measure = EvalMeasure::kKl;
  EXPECT_ERROR(check(), kFailedPrecondition,
               Concat("eval.kl_top_k ", size + 1, " exceeds the vocabulary of ", size));
  config_.eval.kl_top_k = size;
  EXPECT_OK(check());
}

}  // namespace
}  // namespace taopd::testing
