// Losses and gradients against independent programs: the vectors in golden/ (float64 autograd, see
// the generator there), and the shared vectors with the paper's own float32 code.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "taopd/objective/objective.h"
#include "tests/kernels/objective/dense_row.h"
#include "tests/support/files.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

// float64 autograd on both sides.
constexpr double kDoubleTolerance = 1e-9;
// float32 inputs and arithmetic here, float64 there, plus the rounding of the logits themselves.
constexpr double kFloatTolerance = 1e-5;
constexpr double kFloatUlp = 1.2e-7;
// The paper's code is float32 throughout and computes each tail as one minus a float32 mass, so its
// log-ratio of the tails is off by the mass's rounding divided by the tail.
constexpr double kAuthorsTolerance = 2e-5;
constexpr double kAuthorsEpsilon = 1e-6;

double LargestLogit(const json& vector) {
  double largest = 1;
  for (double z : vector["logits"]) largest = std::max(largest, std::abs(z));
  return largest;
}

double FloatTolerance(const json& vector) {
  return kFloatTolerance + kFloatUlp * LargestLogit(vector);
}

double AuthorsTolerance(const json& vector) {
  const auto logits = vector["logits"].get<std::vector<double>>();
  const std::vector<double> log_p = LogSoftmax(logits);
  double student_tail = 1;
  double teacher_tail = 1;
  for (int32_t id : vector["support_ids"]) student_tail -= std::exp(log_p[id]);
  for (double log_q : vector["teacher_logprobs"]) teacher_tail -= std::exp(log_q);
  const double rounding = 2 * kFloatUlp;  // rounding of the log-sum-exp and of log1mexp
  return kAuthorsTolerance +
         rounding * LargestLogit(vector) / std::max(student_tail, kAuthorsEpsilon) +
         rounding / std::max(teacher_tail, kAuthorsEpsilon);
}

template <typename Real>
DenseRow<Real> ToRow(const json& vector) {
  DenseRow<Real> row;
  row.logits = vector["logits"].get<std::vector<Real>>();
  row.support = vector["support_ids"].get<std::vector<int32_t>>();
  row.teacher = vector["teacher_logprobs"].get<std::vector<Real>>();
  if (vector["teacher_log_tail"].is_null()) {
    bool clamped = false;
    row.teacher_tail =
        LogTailFromLogMass(LogSumExp(row.teacher.data(), static_cast<int32_t>(row.teacher.size())),
                           Real(kAuthorsEpsilon), &clamped);
  } else {
    row.teacher_tail = vector["teacher_log_tail"].get<Real>();
  }
  row.sampled = vector["sampled_id"].get<int32_t>();
  row.teacher_sampled = vector["teacher_logprob_sampled"].get<Real>();
  row.off_policy = !vector["behavior_logprob"].is_null();
  if (row.off_policy) row.log_behavior = vector["behavior_logprob"].get<Real>();
  if (vector.contains("teacher_entropy"))
    row.teacher_entropy = vector["teacher_entropy"].get<Real>();
  if (vector.contains("advantage")) row.advantage = vector["advantage"].get<Real>();
  if (vector["objective"] == "full") {
    row.support.resize(row.logits.size());
    for (std::size_t v = 0; v < row.support.size(); ++v) row.support[v] = static_cast<int32_t>(v);
    row.teacher = vector["teacher_full_logprobs"].get<std::vector<Real>>();
    row.teacher_tail = NegativeInfinity<Real>();
  }
  return row;
}

Objective ToObjective(const json& vector) {
  const std::string name = vector["objective"];
  Objective objective = FindObjective(name).value();
  if (vector.contains("beta")) objective.beta = vector["beta"];
  if (vector.contains("entropy_threshold")) {
    objective.entropy_threshold = vector["entropy_threshold"];
  }
  if (vector.contains("clip_low")) objective.clip_low = vector["clip_low"];
  if (vector.contains("clip_high")) objective.clip_high = vector["clip_high"];
  return objective;
}

template <typename Real>
void ExpectMatches(const json& vector, double tolerance, Real student_epsilon) {
  const DenseRow<Real> row = ToRow<Real>(vector);
  const DenseResult<Real> result = Evaluate(ToObjective(vector), row, student_epsilon);
  const std::string what =
      vector["id"].get<std::string>() + " " + vector["objective"].get<std::string>();
  const double loss = vector["expected"]["loss"];
  EXPECT_NEAR(result.loss, loss, tolerance * (1 + std::abs(loss))) << what;
  const auto gradient = vector["expected"]["grad"].get<std::vector<double>>();
  double size = 1;
  for (double g : gradient) size = std::max(size, std::abs(g));
  ASSERT_EQ(result.gradient.size(), gradient.size()) << what;
  for (std::size_t v = 0; v < gradient.size(); ++v) {
    EXPECT_NEAR(result.gradient[v], gradient[v], tolerance * size) << what << ", logit " << v;
  }
}

void ExpectMatchesAutograd(const json& vector) {
  ExpectMatches<double>(vector, kDoubleTolerance, 0);
  ExpectMatches<float>(vector, FloatTolerance(vector), 0);
}

std::map<std::string, int> ForVectors(const std::string& path, const std::string& source,
                                      const std::function<void(const json&)>& f) {
  std::map<std::string, int> counts;
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  for (std::string line; std::getline(file, line);) {
    const json vector = json::parse(line);
    if (vector["source"] != source) continue;
    f(vector);
    ++counts[vector["objective"]];
  }
  return counts;
}

TEST(ObjectiveGolden, DoubleAndFloatMatchAutogradForEveryObjective) {
  const auto counts = ForVectors(SourcePath("tests/kernels/golden/objective_vectors.jsonl"),
                                 "float64", ExpectMatchesAutograd);
  for (const ObjectiveInfo& info : kObjectives) {
    EXPECT_GT(counts.count(std::string(info.name)), 0u) << info.name << " has no golden vector";
  }
}

TEST(ObjectiveGolden, SharedVectorsMatchAutograd) {
  const std::string path = SharedData("objective_vectors.jsonl");
  if (path.empty()) GTEST_SKIP() << "shared data is absent";
  EXPECT_EQ(ForVectors(path, "float64", ExpectMatchesAutograd).size(), 6u);
}

TEST(ObjectiveGolden, SharedVectorsMatchThePapersCode) {
  const std::string path = SharedData("objective_vectors.jsonl");
  if (path.empty()) GTEST_SKIP() << "shared data is absent";
  const auto counts = ForVectors(path, "authors", [](const json& vector) {
    ExpectMatches<double>(vector, AuthorsTolerance(vector), kAuthorsEpsilon);
  });
  EXPECT_EQ(counts.size(), 5u);
}

}  // namespace
}  // namespace taopd::testing
