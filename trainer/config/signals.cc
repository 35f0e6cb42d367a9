#include "trainer/config/signals.h"

#include <cmath>

namespace taopd {
namespace {

constexpr std::string_view kDefaultObjectiveName = InfoOf(Objective()).name;
constexpr std::string_view kRewardObjective = "policy_gradient";

// Checks that the loss has a place for the reward's term, or needs no reward.
absl::Status CheckRewardTerm(const ObjectiveConfig& config, const RewardConfig& reward) {
  for (const ObjectiveTermConfig& term : config.terms) {
    if (term.name == kRewardObjective) {
      return InvalidArgument("objective.terms names ", kRewardObjective,
                             ": the section reward adds it, with the factor reward.weight");
    }
  }
  if (config.IsRewardAlone() && !reward.IsOn()) {
    return InvalidArgument("objective.name = ", kRewardObjective,
                           ": needs a reward; set reward.grader or reward.url");
  }
  if (reward.IsOn() && config.terms.size() == static_cast<size_t>(kMaxObjectiveTerms)) {
    return InvalidArgument("objective.terms has ", kMaxObjectiveTerms,
                           " terms, the limit, and the reward adds one");
  }
  return absl::OkStatus();
}

// A response that the student has not drawn says nothing about a mean over the student.
absl::Status CheckOffPolicy(const TrainConfig& config) {
  const DataConfig& data = config.data;
  if (data.offpolicy_fraction == 0 && data.response_key.empty()) return absl::OkStatus();
  if (data.response_key.empty() || data.offpolicy_fraction == 0) {
    return InvalidArgument(
        "data.offpolicy_fraction and data.response_key: one needs the other (fraction ",
        data.offpolicy_fraction, ", key \"", data.response_key, "\")");
  }
  const std::string setting = Concat("data.offpolicy_fraction = ", data.offpolicy_fraction);
  if (data.NumOffPolicy() == 0) {
    return InvalidArgument(setting,
                           ": is none of the data.train_batch_size = ", data.train_batch_size,
                           " prompts of a step");
  }
  const ObjectiveTerms terms = config.LossTerms();
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const ObjectiveInfo& info = InfoOf(terms.term[i].objective);
    if (!(info.needs & kReadsBehavior) || (info.needs & kAllowsGivenResponses)) continue;
    return InvalidArgument(setting, ": ", info.name,
                           " estimates a mean over the student's distribution from the sampled "
                           "token, which a given response is not; use an objective that does not, "
                           "such as ",
                           kDefaultObjectiveName);
  }
  if (config.objective.support != SupportChoice::kTeacher) {
    return InvalidArgument(setting, ": objective.support = ", WordOf(config.objective.support),
                           " needs the student's top-k of each position, which a given response "
                           "does not have; use teacher");
  }
  if (data.HasSibling()) {
    return InvalidArgument(setting,
                           ": data.teacher_prompt_template has {sibling}, and a given response has "
                           "none");
  }
  return absl::OkStatus();
}

// Without a teacher there is only the reward.
absl::Status CheckNoTeacher(const TrainConfig& config) {
  if (config.teacher.kind != TeacherKind::kNone) return absl::OkStatus();
  if (!config.objective.IsRewardAlone()) {
    return InvalidArgument(
        "teacher.kind = none: the objective needs a teacher, unless "
        "objective.name is ",
        kRewardObjective);
  }
  if (config.objective.support != SupportChoice::kTeacher)
    return InvalidArgument("teacher.kind = none: objective.support must be teacher, the default");
  if (config.objective.full_kl_rows > 0)
    return InvalidArgument("teacher.kind = none: objective.full_kl_rows needs a teacher");
  if (config.eval.measure == EvalMeasure::kKl)
    return InvalidArgument("teacher.kind = none: eval.measure = kl needs a teacher");
  if (config.data.HasTeacherPrompt())
    return InvalidArgument(
        "teacher.kind = none: no teacher would see data.teacher_prompt_key "
        "or data.teacher_prompt_template");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSignals(const TrainConfig& config) {
  TAOPD_RETURN_IF_ERROR(CheckReward(config.reward, config.rollout.n));
  TAOPD_RETURN_IF_ERROR(CheckRewardTerm(config.objective, config.reward));
  TAOPD_RETURN_IF_ERROR(CheckNoTeacher(config));
  if (config.eval.IsJudgedByServer() && !config.eval.answer_pattern.empty())
    return InvalidArgument("eval.answer_pattern is for a grader, and eval.grader is a URL");
  if (config.eval.IsJudgedByServer() && config.data.HasSibling()) {
    return InvalidArgument("eval.grader = ", config.eval.grader,
                           ": {sibling} in data.teacher_prompt_template needs a grader that "
                           "answers at once; give the name of one");
  }
  return CheckOffPolicy(config);
}

int64_t DataConfig::NumOffPolicy() const {
  return std::llround(offpolicy_fraction * static_cast<double>(train_batch_size));
}

bool ObjectiveConfig::IsRewardAlone() const { return terms.empty() && name == kRewardObjective; }

ObjectiveTerms TrainConfig::LossTerms() const {
  ObjectiveTerms all = objective.Terms();
  if (!reward.IsOn()) return all;
  if (objective.IsRewardAlone()) all.num_terms = 0;
  Objective gradient = *FindObjective(kRewardObjective);
  static_cast<ObjectiveParameters&>(gradient) = objective.parameters;
  gradient.clip_low = reward.clip_low;
  gradient.clip_high = reward.clip_high;
  all.term[all.num_terms++] = {gradient, reward.weight};
  return all;
}

}  // namespace taopd
