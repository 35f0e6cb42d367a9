#include "trainer/bandit/bandit.h"

#include <algorithm>
#include <cmath>

#include "common/base/random.h"
#include "taopd/head/dense_row.h"
#include "taopd/objective/check_objective.h"

namespace taopd::bandit {
namespace {

constexpr double kInitialDeviation = 0.01;
constexpr int64_t kMaxSteps = 10'000'000;
constexpr int64_t kMaxPoints = 100'000;
// The largest seed that every JSON reader keeps exact.
constexpr uint64_t kMaxSeed = uint64_t{1} << 53;

// PyTorch's AdamW for one parameter group; independent of taopd/layers/adamw_math.h.
class AdamW {
 public:
  AdamW(double learning_rate, double weight_decay)
      : learning_rate_(learning_rate), weight_decay_(weight_decay) {}

  void Step(const std::vector<double>& gradient, std::vector<double>* parameters) {
    constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEpsilon = 1e-8;
    mean_.resize(gradient.size());
    square_.resize(gradient.size());
    power1_ *= kBeta1;
    power2_ *= kBeta2;
    for (size_t i = 0; i < gradient.size(); ++i) {
      double& parameter = (*parameters)[i];
      parameter *= 1 - learning_rate_ * weight_decay_;
      mean_[i] = kBeta1 * mean_[i] + (1 - kBeta1) * gradient[i];
      square_[i] = kBeta2 * square_[i] + (1 - kBeta2) * gradient[i] * gradient[i];
      const double root = std::sqrt(square_[i] / (1 - power2_)) + kEpsilon;
      parameter -= learning_rate_ * (mean_[i] / (1 - power1_)) / root;
    }
  }

 private:
  double learning_rate_, weight_decay_;
  double power1_ = 1, power2_ = 1;
  std::vector<double> mean_, square_;
};

std::vector<double> Logs(const std::vector<double>& probabilities) {
  std::vector<double> logs;
  for (double p : probabilities) logs.push_back(std::log(p));
  return logs;
}

int32_t Draw(const std::vector<double>& log_p, RandomStream* random) {
  double left = random->NextUniform();
  for (int32_t v = 0; v < kNumArms; ++v) {
    left -= std::exp(log_p[v]);
    if (left < 0) return v;
  }
  // The probabilities sum up to a little less than 1.
  return kNumArms - 1;
}

// The teacher's values in the rows of a step.
struct Teacher {
  std::vector<double> log_q;
  double entropy = 0;
};

cpu::DenseRow MakeRow(const Teacher& teacher, std::vector<int32_t> support,
                      const std::vector<double>& logits, int32_t sampled) {
  cpu::DenseRow row;
  row.logits = logits;
  row.support_ids = std::move(support);
  std::vector<double> rest = teacher.log_q;
  for (int32_t id : row.support_ids) {
    row.teacher_log_probs.push_back(teacher.log_q[id]);
    rest[id] = NegativeInfinity<double>();
  }
  row.teacher_log_tail = LogSumExp(rest.data(), kNumArms);
  row.sampled_id = sampled;
  row.teacher_sampled_log_prob = teacher.log_q[sampled];
  row.teacher_entropy = teacher.entropy;
  return row;
}

std::vector<int32_t> SupportOf(const Options& options, uint32_t traits,
                               const std::vector<double>& log_q,
                               const std::vector<double>& logits) {
  if (traits & kNeedsFullVocabulary) return cpu::LargestIds(log_q, kNumArms);
  if (options.support == Options::Support::kStudent) {
    return cpu::LargestIds(logits, options.k);
  }
  std::vector<int32_t> support = cpu::LargestIds(log_q, options.k);
  if (options.support == Options::Support::kTeacher) return support;
  for (int32_t id : cpu::LargestIds(logits, options.k)) {
    if (std::ranges::find(support, id) == support.end()) support.push_back(id);
  }
  return support;
}

TrajectoryPoint MakePoint(int64_t step, const std::vector<double>& logits,
                          const std::vector<double>& log_q, const std::vector<int32_t>& support) {
  TrajectoryPoint point = {.step = step, .logits = logits};
  const std::vector<double> log_p = cpu::LogSoftmax(logits);
  for (int32_t v = 0; v < kNumArms; ++v) {
    point.full_kl += std::exp(log_p[v]) * (log_p[v] - log_q[v]);
    if (std::ranges::find(support, v) == support.end()) {
      point.student_tail += std::exp(log_p[v]);
    }
  }
  return point;
}

absl::Status CheckOptions(const Options& options) {
  if (options.k < 1 || options.k > kNumArms) {
    return InvalidArgument("k is ", options.k, ", must be 1 to ", kNumArms);
  }
  if (options.seed > kMaxSeed) {
    return InvalidArgument("seed is ", options.seed, ", must be at most ", kMaxSeed);
  }
  if (options.steps < 1 || options.steps > kMaxSteps) {
    return InvalidArgument("steps is ", options.steps, ", must be 1 to ", kMaxSteps);
  }
  if (options.record_every < 1 || options.steps / options.record_every >= kMaxPoints) {
    return InvalidArgument("record_every is ", options.record_every,
                           ", must be at least 1 and leave fewer than ", kMaxPoints, " points");
  }
  if (!(options.learning_rate > 0 && std::isfinite(options.learning_rate))) {
    return InvalidArgument("learning_rate is ", options.learning_rate, ", must be above 0");
  }
  if (!(options.weight_decay >= 0 && std::isfinite(options.weight_decay))) {
    return InvalidArgument("weight_decay is ", options.weight_decay, ", must be at least 0");
  }
  if (!options.initial_logits.empty() && options.initial_logits.size() != kNumArms) {
    return InvalidArgument("initial_logits has ", options.initial_logits.size(),
                           " numbers, must have ", kNumArms);
  }
  return absl::OkStatus();
}

absl::StatusOr<ObjectiveRun> RunOne(const std::string& name, const Options& options,
                                    const Teacher& teacher, const std::vector<int32_t>& top_k,
                                    const std::vector<double>& initial_logits) {
  const std::optional<Objective> objective = FindObjective(name);
  if (!objective) {
    return InvalidArgument("objective is \"", name,
                           "\", must be a name that `taopd-trainer objectives` lists");
  }
  const uint32_t traits = InfoOf(*objective).traits;
  if (traits & kNeedsAdvantage)
    return InvalidArgument("objective ", name, ": the bandit has no reward");
  const bool drawn_by_student = traits != kNeedsNothing;
  RandomStream random(options.seed, "bandit draw " + name);
  AdamW optimizer(options.learning_rate, options.weight_decay);
  std::vector<double> logits = initial_logits;
  ObjectiveRun run;
  run.objective = name;
  run.trajectory.push_back(MakePoint(0, logits, teacher.log_q, top_k));
  cpu::DenseRowResult result;
  for (int64_t step = 1; step <= options.steps; ++step) {
    const int32_t sampled =
        Draw(drawn_by_student ? cpu::LogSoftmax(logits) : teacher.log_q, &random);
    const cpu::DenseRow row =
        MakeRow(teacher, SupportOf(options, traits, teacher.log_q, logits), logits, sampled);
    const cpu::RowStatus status = cpu::EvaluateDenseRow(*objective, row, &result);
    if (status != cpu::RowStatus::kOk) return Internal(name, ": ", cpu::Describe(status));
    optimizer.Step(result.gradient, &logits);
    if (step % options.record_every == 0 || step == options.steps) {
      run.trajectory.push_back(MakePoint(step, logits, teacher.log_q, top_k));
      if (!std::isfinite(run.trajectory.back().full_kl)) {
        return InvalidArgument("learning_rate is ", options.learning_rate, ": ", name,
                               " diverged before step ", step);
      }
    }
  }
  for (double x : cpu::LogSoftmax(logits)) run.policy.push_back(std::exp(x));
  return run;
}

}  // namespace

std::vector<double> TeacherPolicy() {
  std::vector<double> q(kNumArms);
  double sum = 0;
  for (int32_t v = 0; v < kNumArms; ++v) {
    const double low = v + 1 - 10, high = v + 1 - 20;
    q[v] = std::exp(-low * low / 8) + 0.88 * std::exp(-high * high / 8);
    sum += q[v];
  }
  for (double& x : q) x /= sum;
  return q;
}

absl::StatusOr<Result> RunBandit(const std::vector<std::string>& objectives,
                                 const Options& options) {
  TAOPD_RETURN_IF_ERROR(CheckOptions(options));
  if (objectives.empty()) return InvalidArgument("objective must name at least one");
  Result result;
  result.options = options;
  result.teacher = TeacherPolicy();
  Teacher teacher;
  teacher.log_q = Logs(result.teacher);
  for (double x : teacher.log_q) teacher.entropy -= std::exp(x) * x;
  result.teacher_support = cpu::LargestIds(teacher.log_q, options.k);
  for (int32_t v = 0; v < kNumArms; ++v) {
    const auto& support = result.teacher_support;
    const bool inside = std::ranges::find(support, v) != support.end();
    if (!inside) result.teacher_tail += result.teacher[v];
  }

  std::vector<double>& initial = result.options.initial_logits;
  if (initial.empty()) {
    RandomStream random(options.seed, "bandit initial logits");
    for (int32_t v = 0; v < kNumArms; ++v) {
      initial.push_back(kInitialDeviation * random.NextNormal());
    }
  }
  for (const std::string& name : objectives) {
    TAOPD_ASSIGN_OR_RETURN(
        result.runs.emplace_back(),
        RunOne(name, options, teacher, result.teacher_support, result.options.initial_logits));
  }
  return result;
}

absl::StatusOr<Options::Support> ParseSupport(const std::string& name) {
  for (const auto& [support, known] : NamesOf(Options::Support())) {
    if (known == name) return support;
  }
  return InvalidArgument("support is \"", name, "\", must be teacher, student or union");
}

}  // namespace taopd::bandit
