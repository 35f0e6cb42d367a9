#include "trainer/eval/accuracy.h"

#include <cmath>
#include <set>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// Answers with a function of (problem, sample), on another thread and in reverse order.
class FakeSource final : public ResponseSource {
 public:
  using Answer = std::function<absl::StatusOr<EvalResponse>(const EvalTask&)>;
  explicit FakeSource(Answer answer) : answer_(std::move(answer)) {}
  ~FakeSource() override {
    if (thread_.joinable()) thread_.join();
  }
  void Generate(const std::vector<EvalTask>& tasks, const EvalSampling& sampling,
                std::function<void(size_t, absl::StatusOr<EvalResponse>)> done) override {
    sampling_ = sampling;
    if (thread_.joinable()) thread_.join();
    thread_ = std::thread([this, &tasks, done] {
      for (size_t i = tasks.size(); i-- > 0;) {
        asked_.insert({tasks[i].problem_index, tasks[i].sample});
        seeds_.insert(tasks[i].seed);
        done(i, answer_(tasks[i]));
      }
    });
  }
  std::set<std::pair<int64_t, int64_t>> asked_;
  std::set<uint64_t> seeds_;
  EvalSampling sampling_;

 private:
  Answer answer_;
  std::thread thread_;
};

std::vector<PromptRecord> Problems(const std::vector<std::string>& sources) {
  std::vector<PromptRecord> problems;
  for (size_t i = 0; i < sources.size(); ++i) {
    const PromptRecord problem = {.id = Concat("f:", i + 1),
                                  .prompt = Concat("question ", i),
                                  .answer = std::to_string(i),
                                  .source = sources[i]};
    problems.push_back(problem);
  }
  return problems;
}

EvalConfig Config(int64_t n) { return {.n = n, .grader = "exact"}; }

// Sample s of problem p is right when s <= p.
absl::StatusOr<EvalResponse> RightUpToTheProblem(const EvalTask& task) {
  return EvalResponse{.text = task.sample <= task.problem_index ? task.problem->answer : "wrong",
                      .truncated = task.sample == 3,
                      .num_tokens = 10 + task.sample};
}

AccuracyRun RunOf(const EvalConfig& config, const std::vector<PromptRecord>& problems,
                  ResponseSource* source) {
  return AccuracyRun{.config = &config, .problems = &problems, .source = source};
}

double Metric(const EvalResult& result, const std::string& name) {
  for (const auto& [key, value] : result.metrics) {
    if (key == name) return value;
  }
  ADD_FAILURE() << name;
  return -1;
}

TEST(EvaluateAccuracy, NumbersOfASmallTable) {
  const auto problems = Problems({"b", "a", "a"});
  EvalConfig config = Config(4);
  config.num_samples = 2;
  FakeSource source(RightUpToTheProblem);
  AccuracyRun run = RunOf(config, problems, &source);
  int64_t last_done = 0, last_correct = 0;
  run.on_progress = [&](int64_t done, int64_t tasks, int64_t correct) {
    EXPECT_EQ(done, ++last_done);
    EXPECT_EQ(tasks, 12);
    last_correct = correct;
  };
  ASSERT_OK_AND_ASSIGN(const EvalResult result, EvaluateAccuracy(run));
  EXPECT_EQ(last_done, 12);
  EXPECT_EQ(last_correct, 6);
  EXPECT_EQ(source.seeds_.size(), 12u);
  EXPECT_EQ(source.sampling_.temperature, 0.7);
  EXPECT_EQ(source.sampling_.top_p, 0.95);
  EXPECT_EQ(source.sampling_.max_tokens, 8192);
  const AccuracyReport& report = result.accuracy;
  ASSERT_EQ(report.sources.size(), 2u);
  EXPECT_EQ(report.sources[0].source, "a");
  EXPECT_DOUBLE_EQ(report.sources[0].avg, (0.5 + 0.75) / 2);
  EXPECT_DOUBLE_EQ(report.sources[1].avg, 0.25);
  EXPECT_DOUBLE_EQ(report.all.avg, 0.5);
  EXPECT_DOUBLE_EQ(report.macro_avg, (0.625 + 0.25) / 2);
  EXPECT_EQ(report.all.n, 4);
  // pass@2 with 1, 2 and 3 of 4 right is 1/2, 5/6 and 1.
  ASSERT_EQ(report.all.pass_at_k.size(), 3u);
  EXPECT_EQ(report.all.pass_at_k[1].first, 2);
  EXPECT_NEAR(report.all.pass_at_k[1].second, (1.0 / 2 + 5.0 / 6 + 1) / 3, 1e-12);
  EXPECT_DOUBLE_EQ(report.all.pass_at_k[2].second, 1.0);
  // "wrong" counts as one answer. The votes are 3 to 1, 2 to 2 with the right one first, and 1 to
  // 3.
  EXPECT_NEAR(report.all.majority, 2.0 / 3, 1e-12);
  EXPECT_DOUBLE_EQ(report.all.truncated_share, 0.25);
  EXPECT_DOUBLE_EQ(report.all.mean_tokens, 11.5);
  EXPECT_EQ(Metric(result, "eval/accuracy"), 0.5);
  EXPECT_EQ(Metric(result, "eval/n"), 3);
  EXPECT_EQ(Metric(result, "eval/pass_at_4"), 1.0);
  EXPECT_EQ(Metric(result, "eval/accuracy/b"), 0.25);
  ASSERT_EQ(result.samples.size(), 2u);
  EXPECT_EQ(result.samples[0].response, "0");
  EXPECT_TRUE(result.samples[0].correct);
  EXPECT_EQ(result.samples[1].response, "wrong");
  const std::string table = AccuracyTable(report);
  EXPECT_THAT(table, HasSubstr("a             2    4   62.50"));
  EXPECT_THAT(table, HasSubstr("macro                  43.75"));
  const auto json = AccuracyReportJson(report);
  EXPECT_EQ(json["accuracy"], 0.5);
  EXPECT_EQ(json["n"], 3);
  EXPECT_EQ(json["responses_per_problem"], 4);
  EXPECT_EQ(json["sources"][1]["source"], "b");
  EXPECT_EQ(json["pass_at_k"]["4"], 1.0);
}

// Each of three processes generates only its own responses, and all get the result of a single
// process. An error of the exchange or of a process is returned.
TEST(EvaluateAccuracy, PartsHaveTheResultOfTheWhole) {
  const auto problems = Problems({"b", "a", "a", "b", "a"});
  EvalConfig config = Config(4);
  config.num_samples = 7;
  FakeSource alone(RightUpToTheProblem);
  ASSERT_OK_AND_ASSIGN(const EvalResult expected,
                       EvaluateAccuracy(RunOf(config, problems, &alone)));
  std::vector<std::string> found;
  std::set<std::pair<int64_t, int64_t>> asked;
  for (int64_t number = 0; number < 3; ++number) {
    FakeSource source(RightUpToTheProblem);
    AccuracyRun run = RunOf(config, problems, &source);
    run.part = {number, 3, [&](const auto& mine) -> absl::StatusOr<std::vector<std::string>> {
                  EXPECT_OK(mine);
                  found.push_back(*mine);
                  return Unavailable("the others are away");
                }};
    EXPECT_ERROR(EvaluateAccuracy(run), kUnavailable, "the others are away");
    for (const auto& task : source.asked_) EXPECT_TRUE(asked.insert(task).second);
  }
  EXPECT_EQ(asked, alone.asked_);
  for (int64_t number = 0; number < 3; ++number) {
    FakeSource source(RightUpToTheProblem);
    AccuracyRun run = RunOf(config, problems, &source);
    run.part = {number, 3, [&](const auto&) { return found; }};
    ASSERT_OK_AND_ASSIGN(const EvalResult result, EvaluateAccuracy(run));
    EXPECT_EQ(result.metrics, expected.metrics);
    ASSERT_EQ(result.samples.size(), expected.samples.size());
    for (size_t i = 0; i < result.samples.size(); ++i) {
      EXPECT_EQ(result.samples[i].id, expected.samples[i].id);
      EXPECT_EQ(result.samples[i].response, expected.samples[i].response);
      EXPECT_EQ(result.samples[i].correct, expected.samples[i].correct);
    }
  }
  FakeSource broken([](const EvalTask&) { return Unavailable("gone"); });
  AccuracyRun run = RunOf(config, problems, &broken);
  run.part = {0, 3, [&](const auto& mine) -> absl::StatusOr<std::vector<std::string>> {
                EXPECT_ERROR(mine, kUnavailable, "gone");
                return mine.status();
              }};
  EXPECT_ERROR(EvaluateAccuracy(run), kUnavailable, "gone");
}

TEST(EvaluateAccuracy, ACutResponseIsWrongUnlessAllowed) {
  const auto problems = Problems({"a", "a", "a", "a"});
  EvalConfig config = Config(4);
  FakeSource source(RightUpToTheProblem);
  ASSERT_OK_AND_ASSIGN(const EvalResult strict, EvaluateAccuracy(RunOf(config, problems, &source)));
  config.require_stop = false;
  ASSERT_OK_AND_ASSIGN(const EvalResult lenient,
                       EvaluateAccuracy(RunOf(config, problems, &source)));
  EXPECT_DOUBLE_EQ(lenient.accuracy.all.avg - strict.accuracy.all.avg,
                   1.0 / 16);  // problem 3, sample 3
}

TEST(EvaluateAccuracy, ResponsesBySource) {
  const auto problems = Problems({"math", "mmlu_pro"});
  EvalConfig config = Config(3);
  FakeSource source(RightUpToTheProblem);
  ASSERT_OK_AND_ASSIGN(const EvalResult result, EvaluateAccuracy(RunOf(config, problems, &source)));
  EXPECT_EQ(source.asked_.size(), 4u);  // one response for MMLU-Pro, as in the paper
  EXPECT_EQ(result.accuracy.sources[1].n, 1);
  EXPECT_EQ(result.accuracy.all.n, 0);
  for (const char* bad : {"x", "x=", "=3", "x=0", "x=-1", "x=1.5"}) {
    EXPECT_ERROR(ParseResponsesBySource({bad}), kInvalidArgument,
                 Concat("\"", bad, "\" is not SOURCE=NUMBER"));
  }
  EXPECT_ERROR(ParseResponsesBySource({"a=1", "a=2"}), kInvalidArgument, "twice");
  EXPECT_EQ(ParseResponsesBySource({"a=b=2"})->at("a=b"), 2);
}

TEST(EvaluateAccuracy, TheJournalIsNotGeneratedAgain) {
  TempDir dir;
  const auto problems = Problems({"a", "b", "c"});
  const EvalConfig config = Config(4);
  // Evaluates with what the journal has.
  const auto evaluate = [&](const std::vector<PromptRecord>& asked, FakeSource* source) {
    auto journal = EvalJournal::Open(dir.File("r.jsonl"), {{"x", 1}}, /*overwrite=*/false);
    EXPECT_OK(journal);
    AccuracyRun run = RunOf(config, asked, source);
    run.journal = &*journal;
    return EvaluateAccuracy(run);
  };
  // The server fails in the middle; the responses before the failure are kept.
  FakeSource failing([](const EvalTask& task) -> absl::StatusOr<EvalResponse> {
    if (task.problem_index == 1 && task.sample == 2) return Unavailable("gone");
    if (task.problem_index <= 1 && task.sample < 2) return absl::CancelledError("not asked");
    return RightUpToTheProblem(task);
  });
  EXPECT_ERROR(evaluate(problems, &failing), kUnavailable, "gone");
  FakeSource whole(RightUpToTheProblem), rest(RightUpToTheProblem), none(RightUpToTheProblem);
  ASSERT_OK_AND_ASSIGN(const EvalResult expected,
                       EvaluateAccuracy(RunOf(config, problems, &whole)));
  for (FakeSource* source : {&rest, &none}) {
    ASSERT_OK_AND_ASSIGN(const EvalResult result, evaluate(problems, source));
    EXPECT_EQ(result.metrics, expected.metrics);
    EXPECT_EQ(result.samples.size(), expected.samples.size());
    for (size_t i = 0; i < result.samples.size(); ++i)
      EXPECT_EQ(result.samples[i].response, expected.samples[i].response);
  }
  EXPECT_EQ(rest.asked_,
            (std::set<std::pair<int64_t, int64_t>>{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 2}}));
  EXPECT_TRUE(none.asked_.empty());
  // Other problems with the same numbers.
  auto others = problems;
  others[0].id = "other";
  EXPECT_ERROR(evaluate(others, &none), kFailedPrecondition, "\"other\"");
}

TEST(EvaluateAccuracy, AJournalWithAValueOfAnotherTypeIsRefused) {
  TempDir dir;
  const auto problems = Problems({"a"});
  const EvalConfig config = Config(1);
  nlohmann::ordered_json row = {{"problem", 0},     {"sample", 0},       {"id", "f:1"},
                                {"extracted", "0"}, {"correct", true},   {"truncated", false},
                                {"num_tokens", 1},  {"response", {1, 2}}};
  const auto evaluate = [&]() -> absl::StatusOr<EvalResult> {
    {
      auto journal = EvalJournal::Open(dir.File("r.jsonl"), {{"x", 1}}, /*overwrite=*/true);
      EXPECT_OK(journal->Add(row));
    }
    FakeSource source(RightUpToTheProblem);
    auto journal = EvalJournal::Open(dir.File("r.jsonl"), {{"x", 1}}, /*overwrite=*/false);
    AccuracyRun run = RunOf(config, problems, &source);
    run.journal = &*journal;
    return EvaluateAccuracy(run);
  };
  EXPECT_ERROR(evaluate(), kDataLoss, "has a response that is not a text");
  row["response"] = "0";
  EXPECT_OK(evaluate());
  row["correct"] = "yes";
  EXPECT_ERROR(evaluate(), kDataLoss, "lacks id, correct");
}

// An accuracy of zero may only mean that the grader looks for another form of answer.
TEST(EvaluateAccuracy, WarnsOnceIfNoAnswerIsEverFound) {
  const auto problems = Problems({"a", "a"});
  EvalConfig config = Config(3);
  config.answer_pattern = "answer is (\\w+)";
  const auto warnings_of = [&](const std::string& only_answer) {
    FakeSource source([&](const EvalTask& task) -> absl::StatusOr<EvalResponse> {
      return EvalResponse{.text = task.problem_index == 1 && task.sample == 2 ? only_answer
                                                                              : "I do not know"};
    });
    ::testing::internal::CaptureStderr();
    EXPECT_OK(EvaluateAccuracy(RunOf(config, problems, &source)));
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string warnings = warnings_of("the same");
  EXPECT_THAT(warnings, HasSubstr("no answer was found in any response"));
  EXPECT_THAT(warnings, HasSubstr("eval.grader=exact"));
  EXPECT_THAT(warnings, HasSubstr("eval.answer_pattern="));
  EXPECT_EQ(warnings.find("no answer was found"), warnings.rfind("no answer was found"));
  EXPECT_THAT(warnings, HasSubstr("response_ends=\"I do not know\" expected=0"));
  // A single answer is enough, whether right or wrong.
  EXPECT_EQ(warnings_of("the answer is 7"), "");
}

// Graders that compare whole responses find an answer only in a right one.
TEST(EvaluateAccuracy, AWholeResponseIsNoAnswerUnlessItIsRight) {
  EvalConfig config = Config(1);
  for (const char* grader : {"exact", "numeric", "regex"}) {
    config.grader = grader;
    EXPECT_FALSE(FoundAnswer(config, {false, "the sum is 7", ""})) << grader;
    EXPECT_TRUE(FoundAnswer(config, {true, "7", ""})) << grader;
  }
  config.grader = "math";
  EXPECT_TRUE(FoundAnswer(config, {false, "8", ""}));
  EXPECT_FALSE(FoundAnswer(config, {false, "", ""}));
  config.grader = "exact";
  config.answer_pattern = "#(.*)";
  EXPECT_TRUE(FoundAnswer(config, {false, "8", ""}));
}

// The names that a run may choose its best metric from are those that an evaluation reports.
TEST(EvaluateAccuracy, NamesItsMetricsBefore) {
  auto problems = Problems({"a", "b"});
  problems[1].source = "other";
  EvalConfig config = Config(3);
  config.n_by_source = {"other=2"};
  FakeSource source([](const EvalTask&) { return EvalResponse(); });
  ASSERT_OK_AND_ASSIGN(const EvalResult result, EvaluateAccuracy(RunOf(config, problems, &source)));
  std::vector<std::string> names;
  for (const auto& [name, value] : result.metrics) names.push_back(name);
  EXPECT_EQ(AccuracyMetricNames(config, problems), names);
}

TEST(EvaluateAccuracy, AProblemWithoutAnswer) {
  auto problems = Problems({"a"});
  problems[0].answer.clear();
  FakeSource source(RightUpToTheProblem);
  EXPECT_ERROR(EvaluateAccuracy(RunOf(Config(1), problems, &source)), kInvalidArgument,
               "f:1: no answer");
}

TEST(SummarizeAccuracy, ResponsesOfUnknownLengthDoNotCountInTheMean) {
  const PromptRecord problem = {.source = "a"};
  ResponseOutcome known, unknown;
  known.num_tokens = 40;
  unknown.num_tokens = -1;
  EXPECT_EQ(SummarizeAccuracy({problem}, {{known, unknown}}, 0).all.mean_tokens, 40);
  EXPECT_TRUE(std::isnan(SummarizeAccuracy({problem}, {{unknown}}, 0).all.mean_tokens));
}

// Answers with errors only: task 1 fails at once if `fails` is set, and the others when they are
// cancelled.
class StuckSource final : public ResponseSource {
 public:
  explicit StuckSource(bool fails) : fails_(fails) {}
  void Generate(const std::vector<EvalTask>& tasks, const EvalSampling&,
                std::function<void(size_t, absl::StatusOr<EvalResponse>)> done) override {
    num_tasks_ = tasks.size();
    done_ = std::move(done);
    if (fails_) done_(1, Unavailable("logits are NaN"));
  }
  void Cancel() override {
    ++num_cancels;
    for (size_t i = 0; i < num_tasks_; ++i) {
      if (!fails_ || i != 1) done_(i, absl::CancelledError("by the source"));
    }
  }
  int num_cancels = 0;

 private:
  const bool fails_;
  size_t num_tasks_ = 0;
  std::function<void(size_t, absl::StatusOr<EvalResponse>)> done_;
};

TEST(EvaluateAccuracy, AnErrorOfTheWaitCancelsTheSourceAndIsTheResult) {
  const EvalConfig config = Config(3);
  const std::vector<PromptRecord> problems = Problems({"a", "b"});
  StuckSource source(/*fails=*/false);
  AccuracyRun run = RunOf(config, problems, &source);
  int num_waits = 0;
  run.on_wait = [&] {
    return ++num_waits < 2 ? absl::OkStatus() : absl::CancelledError("asked to stop");
  };
  EXPECT_ERROR(EvaluateAccuracy(run), kCancelled, "asked to stop");
  EXPECT_EQ(source.num_cancels, 1);
}

TEST(EvaluateAccuracy, TheFirstErrorCancelsTheSourceAndIsTheResult) {
  const EvalConfig config = Config(3);
  const std::vector<PromptRecord> problems = Problems({"a", "b"});
  for (const bool waits : {false, true}) {
    StuckSource source(/*fails=*/true);
    AccuracyRun run = RunOf(config, problems, &source);
    if (waits) run.on_wait = [] { return absl::OkStatus(); };
    EXPECT_ERROR(EvaluateAccuracy(run), kUnavailable, "logits are NaN");
    EXPECT_EQ(source.num_cancels, 1);
  }
}

}  // namespace
}  // namespace taopd::testing
