// Compares the bandit with PyTorch's AdamW and autograd (golden/make_bandit.py), and its final
// policies with the paper's.
#include "trainer/bandit/bandit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "taopd/objective/check_objective.h"
#include "tests/support/files.h"
#include "trainer/bandit/bandit_file.h"

namespace taopd::bandit {
namespace {

using nlohmann::json;

// Both sides compute in float64 while the student learns.
constexpr double kLearningTolerance = 1e-9;
// At an optimum the gradient is rounding error, and AdamW divides it by the root of its own square,
// so the logits drift by a small share of the learning rate (1e-3).
constexpr double kOptimumTolerance = 1e-4;
constexpr int64_t kLearning = 2000;

const TrajectoryPoint& At(const ObjectiveRun& run, int64_t step) {
  for (const TrajectoryPoint& point : run.trajectory) {
    if (point.step == step) return point;
  }
  ADD_FAILURE() << run.objective << " has no point at step " << step;
  return run.trajectory.back();
}

TEST(Bandit, FollowsPyTorch) {
  std::ifstream file(testing::SourcePath("tests/trainer/bandit/golden/bandit.json"));
  const json golden = json::parse(file);
  const Options options = {.k = golden["k"],
                           .steps = golden["steps"],
                           .record_every = 1,
                           .initial_logits = golden["initial_logits"].get<std::vector<double>>()};
  std::vector<std::string> names;
  for (const json& run : golden["runs"]) names.push_back(run["objective"]);
  const auto result = RunBandit(names, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->teacher_tail, golden["teacher_tail"].get<double>(), 1e-14);
  for (size_t i = 0; i < names.size(); ++i) {
    for (const json& expected : golden["runs"][i]["points"]) {
      const TrajectoryPoint& point = At(result->runs[i], expected["step"]);
      const double tolerance = point.step <= kLearning ? kLearningTolerance : kOptimumTolerance;
      for (int32_t v = 0; v < kNumArms; ++v) {
        EXPECT_NEAR(point.logits[v], expected["logits"][v].get<double>(), tolerance)
            << names[i] << ", step " << point.step << ", arm " << v;
      }
      EXPECT_NEAR(point.full_kl, expected["full_kl"].get<double>(), tolerance);
      EXPECT_NEAR(point.student_tail, expected["student_tail"].get<double>(), tolerance);
    }
  }
}

// The results match the paper's figure for any draw of the initial logits.
TEST(Bandit, EndsWhereThePapersDoes) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const Options options = {.seed = seed};
    const auto result =
        RunBandit({"full", "ta_opd", "sc_ta_opd", "normalized", "unnormalized"}, options);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_NEAR(result->teacher_tail, 0.31972, 1e-5);
    const auto end = [&](int i) { return result->runs[i].trajectory.back(); };
    EXPECT_LT(end(0).full_kl, 1e-4) << "full, seed " << seed;
    EXPECT_NEAR(end(1).student_tail, result->teacher_tail, 1e-3) << "ta_opd, seed " << seed;
    EXPECT_NEAR(end(2).student_tail, result->teacher_tail, 0.05) << "sc_ta_opd samples, " << seed;
    EXPECT_NEAR(end(3).student_tail, 0.72, 0.01) << "normalized, seed " << seed;
    // The closed form of its minimum (paper, "The unnormalized objective is not a divergence").
    EXPECT_NEAR(end(4).student_tail, 1 - (1 - result->teacher_tail) / std::exp(1), 1e-3);
    EXPECT_LT(end(2).full_kl, end(1).full_kl) << "the correction reaches the tail's shape";
  }
}

// Every objective runs on every support, and the same options give the same numbers.
TEST(Bandit, RunsEveryObjectiveOnEverySupport) {
  std::vector<std::string> names;
  for (const ObjectiveInfo& info : kObjectives) {
    if (!(info.traits & kNeedsAdvantage)) names.emplace_back(info.name);
  }
  for (auto support :
       {Options::Support::kTeacher, Options::Support::kStudent, Options::Support::kUnion}) {
    for (int32_t k : {1, 8, 30}) {
      const Options options = {.support = support, .k = k, .steps = 300};
      const auto result = RunBandit(names, options);
      ASSERT_TRUE(result.ok()) << NameOf(support) << ", k " << k << ": " << result.status();
      for (const ObjectiveRun& run : result->runs) {
        EXPECT_NEAR(std::accumulate(run.policy.begin(), run.policy.end(), 0.0), 1, 1e-12);
        EXPECT_EQ(run.trajectory.size(), 4u);
      }
      EXPECT_EQ(RunBandit(names, options)->runs[1].policy, result->runs[1].policy);
    }
  }
}

TEST(Bandit, RefusesOptionsByName) {
  const auto refused = [](const std::string& name, const Options& options) {
    const auto result = RunBandit({name}, options);
    EXPECT_FALSE(result.ok());
    return std::string(result.status().message());
  };
  EXPECT_EQ(refused("ta_op", {}),
            "objective is \"ta_op\", must be a name that `taopd-trainer objectives` lists");
  EXPECT_EQ(refused("ta_opd", {.k = 31}), "k is 31, must be 1 to 30");
  EXPECT_EQ(refused("ta_opd", {.steps = 0}), "steps is 0, must be 1 to 10000000");
  EXPECT_EQ(refused("ta_opd", {.learning_rate = std::nan("")}),
            "learning_rate is nan, must be above 0");
  EXPECT_EQ(refused("ta_opd", {.weight_decay = -1}), "weight_decay is -1, must be at least 0");
  EXPECT_EQ(refused("ta_opd", {.seed = (uint64_t{1} << 53) + 1}),
            "seed is 9007199254740993, must be at most 9007199254740992");
  for (const int64_t record_every : {0, 1}) {
    EXPECT_EQ(refused("ta_opd", {.steps = 100'000, .record_every = record_every}),
              Concat("record_every is ", record_every,
                     ", must be at least 1 and leave fewer than 100000 points"));
  }
  EXPECT_EQ(refused("ta_opd", {.initial_logits = {1, 2}}),
            "initial_logits has 2 numbers, must have 30");
  EXPECT_FALSE(RunBandit({}, {}).ok());
  EXPECT_FALSE(ParseSupport("teachers").ok());
}

TEST(BanditFile, IsReadAsItWasWritten) {
  const testing::TempDir dir;
  const Options options = {.support = Options::Support::kUnion, .steps = 250, .seed = 7};
  const Result written = RunBandit({"ta_opd", "jsd"}, options).value();
  ASSERT_TRUE(WriteResult(written, dir.File("b.json")).ok());
  const auto read = ReadResult(dir.File("b.json"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->options.seed, 7u);
  EXPECT_EQ(read->options.support, options.support);
  EXPECT_EQ(read->options.k, options.k);
  EXPECT_EQ(read->options.steps, 250);
  EXPECT_EQ(read->options.learning_rate, options.learning_rate);
  EXPECT_EQ(read->options.weight_decay, options.weight_decay);
  EXPECT_EQ(read->options.record_every, options.record_every);
  EXPECT_EQ(read->options.initial_logits, written.options.initial_logits);
  EXPECT_EQ(read->teacher_tail, written.teacher_tail);
  EXPECT_EQ(read->teacher, written.teacher);
  EXPECT_EQ(read->teacher_support, written.teacher_support);
  ASSERT_EQ(read->runs.size(), 2u);
  EXPECT_EQ(read->runs[1].objective, "jsd");
  EXPECT_EQ(read->runs[1].policy, written.runs[1].policy);
  ASSERT_EQ(read->runs[1].trajectory.size(), written.runs[1].trajectory.size());
  for (size_t i = 0; i < read->runs[1].trajectory.size(); ++i) {
    const TrajectoryPoint& point = read->runs[1].trajectory[i];
    const TrajectoryPoint& expected = written.runs[1].trajectory[i];
    EXPECT_EQ(point.step, expected.step);
    EXPECT_EQ(point.logits, expected.logits);
    EXPECT_EQ(point.full_kl, expected.full_kl);
    EXPECT_EQ(point.student_tail, expected.student_tail);
  }
}

TEST(BanditFile, DamageIsNamed) {
  const testing::TempDir dir;
  const Options options = {.steps = 1};
  ASSERT_TRUE(WriteResult(RunBandit({"ta_opd"}, options).value(), dir.File("b.json")).ok());
  std::ifstream file(dir.File("b.json"));
  const json good = json::parse(file);
  const auto expect_named = [&](auto damage, const char* words) {
    json damaged = good;
    damage(damaged);
    std::ofstream(dir.File("d.json")) << damaged;
    const absl::Status status = ReadResult(dir.File("d.json")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(status.message().find(words), std::string::npos) << status;
  };
  expect_named([](json& j) { j["runs"][0]["policy"][3] = 1.5; }, "runs[0].policy holds 1.5");
  expect_named([](json& j) { j["runs"][0]["trajectory"]["logits"][1].erase(0); },
               "runs[0].trajectory.logits[1]");
  expect_named([](json& j) { j["runs"][0]["trajectory"]["step"][1] = 1e300; },
               "runs[0].trajectory.step holds 1e+300");
  expect_named([](json& j) { j["teacher"]["support"][0] = 30; }, "teacher.support holds 30");
  expect_named([](json& j) { j["format"] = "other"; }, "format is \"other\"");
  expect_named([](json& j) { j = json::array(); }, "format is missing");
}

}  // namespace
}  // namespace taopd::bandit
