#include "trainer/eval/kl_evaluation.h"

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"
#include "tests/trainer/teacher/scripted_teacher.h"
#include "trainer/step/loss/head_targets.h"

namespace taopd::testing {
namespace {

std::vector<PromptRecord> Records() {
  std::vector<PromptRecord> records(3);
  records[0].prompt_ids = {5, 6, 7};
  records[0].response_ids = {8, 9, 10, 2};
  records[1].prompt_ids = {4};
  records[1].response_ids = {2};
  records[2].prompt_ids = {30, 31};
  records[2].response_ids = {32, 33};
  return records;
}

// Computes the definition from dense log-softmaxes: the KL over the teacher's top-k tokens that the
// student has, plus one term for everything else.
double DenseKl(Decoder* student, Decoder* teacher, int64_t top_k,
               const std::vector<PromptRecord>& records) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  int64_t num_rows = 0;
  for (const PromptRecord& record : records) {
    ScoredRollout item;
    item.rollout.prompt_ids = record.prompt_ids;
    item.rollout.response_ids = record.response_ids;
    const auto log_probs = [&](Decoder* model) {
      const at::Tensor hidden_NH = ForwardResponses(model, {&item});
      return at::log_softmax(at::mm(hidden_NH, model->lm_head().t()).to(at::kDouble), 1);
    };
    const at::Tensor log_p_NV = log_probs(student), log_q_NW = log_probs(teacher);
    const int64_t vocab_size = log_p_NV.size(1);
    at::Tensor in_support_NW = at::zeros_like(log_q_NW);
    in_support_NW.scatter_(1, std::get<1>(log_q_NW.topk(top_k, 1)), 1.0);
    const at::Tensor in_support_NV = in_support_NW.narrow(1, 0, vocab_size);
    const at::Tensor log_q_NV = log_q_NW.narrow(1, 0, vocab_size);
    const at::Tensor p_NV = log_p_NV.exp();
    const at::Tensor p_tail_N = 1 - (in_support_NV * p_NV).sum(1);
    const at::Tensor q_tail_N = 1 - (in_support_NV * log_q_NV.exp()).sum(1);
    const at::Tensor row_N = (in_support_NV * p_NV * (log_p_NV - log_q_NV)).sum(1) +
                             p_tail_N * (p_tail_N.log() - q_tail_N.log());
    sum += row_N.sum().item<double>();
    num_rows += row_N.size(0);
  }
  return sum / static_cast<double>(num_rows);
}

// The teachers have the student's vocabulary, without and with padding after it.
TEST(EvaluateKl, EqualsADenseComputation) {
  for (const int64_t teacher_vocabulary : {kTinyVocabulary, kTinyVocabulary + 9}) {
    const auto student = MakeTinyStudent();
    const auto teacher_model = MakeTinyTeacher(teacher_vocabulary);
    const auto teacher = MakeEngineTeacher(teacher_model);
    KlEvaluationOptions options = {.top_k = 6};
    const double expected = DenseKl(student.get(), teacher_model.get(), options.top_k, Records());
    for (const int64_t micro_batch_tokens : {1, 1000}) {
      options.micro_batch_tokens = micro_batch_tokens;
      ASSERT_OK_AND_ASSIGN(const Metrics metrics,
                           EvaluateKl(options, Records(), student.get(), teacher.get()));
      ASSERT_EQ(metrics.size(), 2u);
      EXPECT_EQ(metrics[0].first, "eval/kl_to_teacher");
      EXPECT_NEAR(metrics[0].second, expected, 1e-5 * expected) << teacher_vocabulary;
      EXPECT_EQ(metrics[1], (std::pair<std::string, double>("eval/n", 3)));
    }
  }
}

// Evaluations of the records with one teacher, and with journals in a directory.
class EvaluateKlTest : public ::testing::Test {
 protected:
  absl::StatusOr<Metrics> Evaluate(TeacherClient* teacher = nullptr) {
    if (teacher == nullptr) teacher = teacher_.get();
    return EvaluateKl(options_, Records(), student_.get(), teacher);
  }
  absl::StatusOr<EvalJournal> OpenJournal(const std::string& name = "journal.jsonl") {
    return EvalJournal::Open(dir_.File(name), {{"step", 3}}, /*overwrite=*/false);
  }
  const TempDir dir_;
  const std::shared_ptr<Decoder> student_ = MakeTinyStudent();
  const std::unique_ptr<TeacherClient> teacher_ = MakeEngineTeacher(MakeTinyTeacher());
  KlEvaluationOptions options_ = {.top_k = 6};
};

TEST_F(EvaluateKlTest, TheTeachersErrorEndsIt) {
  options_.top_k = kTinyVocabulary + 1;
  EXPECT_ERROR(Evaluate(), kInvalidArgument, "top_k");
}

// The sums of an interrupted evaluation are not computed again, and the result has the same bits.
TEST_F(EvaluateKlTest, GoesOnFromItsJournal) {
  options_.micro_batch_tokens = 1;  // a pass for each record
  ASSERT_OK_AND_ASSIGN(const Metrics whole, Evaluate());
  {
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, OpenJournal());
    options_.journal = &journal;
    options_.on_wait = [&] {
      return journal.num_added() < 2 ? absl::OkStatus() : absl::CancelledError("asked to stop");
    };
    EXPECT_EQ(Evaluate().status().code(), kCancelled);
  }
  options_.on_wait = [] { return absl::OkStatus(); };
  for (const size_t num_left : {1, 0}) {
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, OpenJournal());
    EXPECT_EQ(journal.rows().size(), 3 - num_left);
    options_.journal = &journal;
    ASSERT_OK_AND_ASSIGN(const Metrics resumed, Evaluate());
    EXPECT_EQ(resumed, whole);
    EXPECT_EQ(journal.num_added(), static_cast<int64_t>(num_left));
  }
  // Passes of another size do not match the rows.
  options_.micro_batch_tokens = 1000;
  ASSERT_OK_AND_ASSIGN(EvalJournal journal, OpenJournal());
  options_.journal = &journal;
  ASSERT_OK(Evaluate());
  EXPECT_EQ(journal.num_added(), 1);
}

TEST_F(EvaluateKlTest, RowsThatLackANumberAreIgnored) {
  ASSERT_OK_AND_ASSIGN(const Metrics whole, Evaluate());
  for (const char* key : {"end", "sum", "num_rows"}) {
    {
      ASSERT_OK_AND_ASSIGN(EvalJournal journal, OpenJournal(key));
      nlohmann::ordered_json row = {
          {"problem", 0}, {"sample", 0}, {"end", 3}, {"sum", 1.0}, {"num_rows", 7}};
      row[key] = "3";
      ASSERT_OK(journal.Add(row));
    }
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, OpenJournal(key));
    options_.journal = &journal;
    ASSERT_OK_AND_ASSIGN(const Metrics again, Evaluate());
    EXPECT_EQ(again, whole) << key;
    EXPECT_EQ(journal.num_added(), 1) << key;
  }
}

// A stop does not wait for a teacher that is away; its replies may come later.
TEST_F(EvaluateKlTest, AnErrorOfTheWaitIsTheResult) {
  std::vector<ScriptedTeacher::Done> open;
  ScriptedTeacher teacher(
      [&](TeacherRequest, ScriptedTeacher::Done done) { open.push_back(std::move(done)); });
  options_.on_wait = [] { return absl::CancelledError("asked to stop"); };
  EXPECT_ERROR(Evaluate(&teacher), kCancelled, "asked to stop");
  ASSERT_EQ(open.size(), 3u);
  for (auto& done : open) done(Unavailable("late"));
}

}  // namespace
}  // namespace taopd::testing
