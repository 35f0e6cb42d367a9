#include "trainer/config/train_config.h"

#include <algorithm>
#include <cmath>

#include "taopd/objective/check_objective.h"

namespace taopd {

namespace {

constexpr std::string_view kDefaultObjective = InfoOf(Objective()).name;
constexpr std::string_view kRewardObjective = "policy_gradient";

void FillInDefaults(ObjectiveConfig& config) {
  if (config.name.empty() && config.terms.empty()) config.name = std::string(kDefaultObjective);
}

absl::Status CheckObjective(const ObjectiveConfig& config) {
  if (!config.terms.empty() && !config.name.empty()) {
    return InvalidArgument("objective.name = ", config.name,
                           " and objective.terms are both given: leave one of them empty");
  }
  if (config.terms.size() > static_cast<size_t>(kMaxObjectiveTerms)) {
    return InvalidArgument("objective.terms has ", config.terms.size(), " terms: the limit is ",
                           kMaxObjectiveTerms);
  }
  for (size_t i = 0; i < config.terms.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (config.terms[i].name == config.terms[j].name) {
        return InvalidArgument("objective.terms names ", config.terms[i].name, " twice");
      }
    }
  }
  if (config.student_top_k > 0 && config.support == SupportChoice::kTeacher) {
    return InvalidArgument("objective.student_top_k = ", config.student_top_k,
                           " needs objective.support = student or union, not teacher");
  }
  const ObjectiveTerms terms = config.Terms();
  if (const std::string problem = ProblemOf(terms); !problem.empty())
    return InvalidArgument("objective: ", problem);
  const double below = config.parameters.mask_rho_below, above = config.parameters.mask_rho_above;
  if (above > 0 && (above < 1 || above < below)) {
    return InvalidArgument("objective.mask_rho_above = ", above,
                           ": must be at least 1 and mask_rho_below = ", below);
  }
  if ((TraitsOf(terms) & kNeedsFullVocabulary) == 0) return absl::OkStatus();
  if (config.support != SupportChoice::kTeacher) {
    return InvalidArgument("objective.support = ", NameOf(config.support), ": ", NameOf(terms),
                           " compares the whole vocabulary; leave it at teacher");
  }
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const ObjectiveInfo& info = InfoOf(terms.term[i].objective);
    if ((info.traits & kNeedsSupport) != 0 && (info.traits & kNeedsFullVocabulary) == 0) {
      return InvalidArgument(
          "objective.terms: ", info.name,
          " compares the top-k, others the whole vocabulary; they cannot be combined");
    }
  }
  return absl::OkStatus();
}

// Truncated sampling never draws some tokens, so an estimate from the sampled token lacks their
// part, and no factor can correct it.
absl::Status CheckSampling(const RolloutConfig& rollout, const ObjectiveTerms& terms) {
  if (rollout.top_p == 1 && rollout.top_k == 0) return absl::OkStatus();
  const std::string setting = rollout.top_p == 1 ? Concat("rollout.top_k = ", rollout.top_k)
                                                 : Concat("rollout.top_p = ", rollout.top_p);
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const ObjectiveInfo& info = InfoOf(terms.term[i].objective);
    if ((info.traits & kReadsBehavior) == 0) continue;
    return InvalidArgument(setting, ": the sampled distribution is truncated, and ", info.name,
                           " estimates a mean over the student's whole distribution from the "
                           "sampled token; use top_p = 1 and top_k = 0, or an objective that does "
                           "not, such as ",
                           kDefaultObjective);
  }
  return absl::OkStatus();
}

// The dense log-probs are fetched when the step trains, from newer weights than the other scores.
absl::Status CheckAsyncTeacher(const TrainConfig& config) {
  if (!FollowsStudent(config.teacher, config.teachers)) return absl::OkStatus();
  if (config.rollout.IsElsewhere()) {
    return InvalidArgument(
        "rollout.endpoints: the weights of the student as its own teacher would change while it "
        "scores responses of later steps; use teacher.weights = start with "
        "teacher.refresh_every = 0, or generate in this process");
  }
  if (config.trainer.async_steps == 0 || config.objective.full_kl_rows == 0)
    return absl::OkStatus();
  return InvalidArgument(
      "objective.full_kl_rows = ", config.objective.full_kl_rows,
      " with trainer.async_steps = ", config.trainer.async_steps,
      ": the weights of the student as its own teacher have changed since it scored the responses; "
      "use full_kl_rows = 0, or objective.name = full, which measures at every position");
}

absl::Status CheckEvalMode(const TrainConfig& config) {
  const EvalConfig& eval = config.eval;
  const bool generates_beside =
      eval.mode == EvalMode::kBeside && eval.measure == EvalMeasure::kAccuracy;
  if (!config.rollout.eval_endpoints.empty() && !generates_beside) {
    return InvalidArgument(
        "rollout.eval_endpoints needs eval.mode = beside and eval.measure = accuracy; other "
        "evaluations are computed by the trainer");
  }
  if (eval.mode == EvalMode::kBlocking) {
    if (eval.kv_cache_gb == EvalConfig().kv_cache_gb) return absl::OkStatus();
    return InvalidArgument("eval.kv_cache_gb = ", eval.kv_cache_gb,
                           " needs eval.mode = beside; blocking evaluations have the pool of "
                           "rollout.kv_cache_gb");
  }
  if (eval.measure != EvalMeasure::kKl || !FollowsStudent(config.teacher, config.teachers))
    return absl::OkStatus();
  return InvalidArgument(
      "eval.mode = beside with eval.measure = kl: the weights of the student as its own teacher "
      "would change during an evaluation; use eval.mode = blocking, or teacher.weights = start "
      "with teacher.refresh_every = 0");
}

absl::Status CheckJudge(const EvalConfig& eval, const DataConfig& data) {
  if (!eval.IsJudgedByServer()) return absl::OkStatus();
  if (!eval.answer_pattern.empty())
    return InvalidArgument("eval.answer_pattern is for a grader, and eval.grader is a URL");
  if (!data.HasSibling()) return absl::OkStatus();
  return InvalidArgument("eval.grader = ", eval.grader,
                         ": {sibling} in data.teacher_prompt_template needs a grader of this "
                         "program; give the name of one");
}

absl::Status CheckTeacherPrompt(const TrainConfig& config) {
  const DataConfig& data = config.data;
  if (!data.HasTeacherPrompt()) {
    if (data.teacher_prompt_missing == MissingTeacherPrompt::kError &&
        data.max_teacher_prompt_length == 0) {
      return absl::OkStatus();
    }
    return InvalidArgument(
        "data.teacher_prompt_missing and data.max_teacher_prompt_length need "
        "data.teacher_prompt_key or data.teacher_prompt_template");
  }
  if (!data.teacher_prompt_key.empty() && !data.teacher_prompt_template.empty()) {
    return InvalidArgument(
        "data.teacher_prompt_key and data.teacher_prompt_template: give one of them");
  }
  if (!data.teacher_prompt_key.empty()) return absl::OkStatus();
  const RowTemplate words(data.teacher_prompt_template);
  if (!words.Has("prompt")) {
    return InvalidArgument("data.teacher_prompt_template = ", data.teacher_prompt_template,
                           ": must contain {prompt}");
  }
  if (!words.Has(kSibling)) return absl::OkStatus();
  const std::vector<std::string> names = words.Names();
  const int64_t sibling_tokens = std::ranges::count(names, kSibling) * data.max_response_length;
  if (data.MaxTeacherPromptLength() <= sibling_tokens) {
    return InvalidArgument("data.max_teacher_prompt_length = ", data.max_teacher_prompt_length,
                           ": leaves no room beside the ", sibling_tokens,
                           " tokens of {sibling} (data.max_response_length for each)");
  }
  if (config.rollout.n < 2) {
    return InvalidArgument("data.teacher_prompt_template has {sibling}: rollout.n = ",
                           config.rollout.n, " must be at least 2");
  }
  if (data.teacher_prompt_missing == MissingTeacherPrompt::kError) {
    return InvalidArgument(
        "data.teacher_prompt_template has {sibling}: a step may have no right response, so "
        "data.teacher_prompt_missing must be plain or skip");
  }
  if (config.eval.measure == EvalMeasure::kKl && !data.val.empty()) {
    return InvalidArgument(
        "eval.measure = kl: the given responses of data.val have no {sibling}, which "
        "data.teacher_prompt_template asks for");
  }
  return absl::OkStatus();
}

// Checks that the terms leave a place for the reward's, and that a loss of it alone has a reward.
absl::Status CheckRewardTerm(const ObjectiveConfig& config, const RewardConfig& reward) {
  for (const ObjectiveTermConfig& term : config.terms) {
    if (term.name == kRewardObjective) {
      return InvalidArgument("objective.terms names ", kRewardObjective,
                             ": the section reward adds it, with the factor reward.weight");
    }
  }
  if (config.IsRewardAlone() && !reward.IsOn()) {
    return InvalidArgument("objective.name = ", kRewardObjective,
                           " needs a reward; set reward.grader or reward.url");
  }
  if (reward.IsOn() && config.terms.size() == static_cast<size_t>(kMaxObjectiveTerms)) {
    return InvalidArgument("objective.terms has ", kMaxObjectiveTerms,
                           " terms, the limit, and the reward adds one");
  }
  return absl::OkStatus();
}

// Given responses cannot estimate an expectation over the student, because the student did not draw
// them.
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
                           ": gives none of the data.train_batch_size = ", data.train_batch_size,
                           " prompts of a step");
  }
  const ObjectiveTerms terms = config.LossTerms();
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const ObjectiveInfo& info = InfoOf(terms.term[i].objective);
    if (!(info.traits & kReadsBehavior) || (info.traits & kAllowsGivenResponses)) continue;
    return InvalidArgument(setting, ": ", info.name,
                           " estimates a mean over the student's distribution from the sampled "
                           "token, which a given response is not; use an objective that does not, "
                           "such as ",
                           kDefaultObjective);
  }
  if (config.objective.support != SupportChoice::kTeacher) {
    return InvalidArgument(setting, ": objective.support = ", NameOf(config.objective.support),
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

// Checks that the objective, the reward, the teacher and the given responses fit each other.
// REQUIRES: the objective has passed its own check.
absl::Status CheckLossInputs(const TrainConfig& config) {
  TAOPD_RETURN_IF_ERROR(CheckReward(config.reward, config.rollout.n));
  TAOPD_RETURN_IF_ERROR(CheckRewardTerm(config.objective, config.reward));
  TAOPD_RETURN_IF_ERROR(CheckNoTeacher(config));
  return CheckOffPolicy(config);
}

// Checks the settings of the loop over the steps.
absl::Status CheckSteps(const TrainConfig& config) {
  const std::string of_best = FirstGiven(config.trainer, {"early_stop_evaluations", "best_is"});
  if (!of_best.empty() && config.trainer.best_metric.empty())
    return InvalidArgument("trainer.", of_best, " needs trainer.best_metric, which is empty");
  if (config.rollout.cuda_graphs == CudaGraphUse::kAlways) {
    TAOPD_RETURN_IF_ERROR(
        Annotate(CheckCanCapture(config.trainer.kernels, 1), "rollout.cuda_graphs = true"));
  }
  if (config.data.train_batch_size % config.trainer.mini_batch_size != 0) {
    return InvalidArgument("trainer.mini_batch_size = ", config.trainer.mini_batch_size,
                           ": must divide data.train_batch_size = ", config.data.train_batch_size);
  }
  if (!config.dist.deterministic && config.dist.shares != DistConfig().shares) {
    return InvalidArgument("dist.shares = ", config.dist.shares,
                           " needs dist.deterministic = true");
  }
  if (config.dist.deterministic && config.dist.gradients == GradientSums::kSharded) {
    return InvalidArgument(
        "dist.gradients = sharded: the order of its sums depends on the number of ranks, which "
        "dist.deterministic rules out; use whole");
  }
  if (config.dist.deterministic && !config.trainer.micro_batch_tokens)
    return InvalidArgument("trainer.micro_batch_tokens = auto: dist.deterministic needs a number");
  if (config.dist.deterministic && config.trainer.num_threads == 0)
    return InvalidArgument("trainer.num_threads = 0: dist.deterministic needs a number above 0");
  return absl::OkStatus();
}

}  // namespace

int64_t DataConfig::LongestSentPrompt() const {
  if (!HasTeacherPrompt()) return max_prompt_length;
  const bool sends_plain = teacher_prompt_missing == MissingTeacherPrompt::kPlain || HasSibling();
  return sends_plain ? std::max(max_prompt_length, MaxTeacherPromptLength())
                     : MaxTeacherPromptLength();
}

int64_t DataConfig::NumOffPolicy() const {
  return std::llround(offpolicy_fraction * static_cast<double>(train_batch_size));
}

ObjectiveTerms ObjectiveConfig::Terms() const {
  ObjectiveConfig filled = *this;
  FillInDefaults(filled);
  if (filled.terms.empty()) filled.terms.push_back({filled.name, 1.0});
  ObjectiveTerms combination;
  combination.num_terms = static_cast<int32_t>(filled.terms.size());
  for (size_t i = 0; i < filled.terms.size(); ++i) {
    Objective objective = *FindObjective(filled.terms[i].name);
    static_cast<ObjectiveParameters&>(objective) = parameters;
    combination.term[i] = {objective, filled.terms[i].weight};
  }
  return combination;
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

Recompute RecomputeOf(const TrainerConfig& config) {
  if (config.recompute == RecomputeChoice::kFull) return Recompute::kFull;
  return config.recompute == RecomputeChoice::kAttention ? Recompute::kAttention : Recompute::kNone;
}

absl::Status CheckTrainConfig(TrainConfig& config) {
  FillInDefaults(config.objective);
  TAOPD_RETURN_IF_ERROR(CheckSettings(DescribeSettings(config)));
  TAOPD_RETURN_IF_ERROR(config.optimizer.Check());
  TAOPD_RETURN_IF_ERROR(CheckTeachers(config.teacher, config.teachers));
  TAOPD_RETURN_IF_ERROR(CheckTeacherPrompt(config));
  TAOPD_RETURN_IF_ERROR(CheckRolloutEndpoints(config.rollout));
  TAOPD_RETURN_IF_ERROR(CheckAsyncTeacher(config));
  TAOPD_RETURN_IF_ERROR(CheckEvalMode(config));
  TAOPD_RETURN_IF_ERROR(CheckJudge(config.eval, config.data));
  if (config.student.lora.is_on() && !config.student.tokenizer.empty())
    return LoraWithTokenizer("student");
  TAOPD_RETURN_IF_ERROR(CheckObjective(config.objective));
  TAOPD_RETURN_IF_ERROR(CheckLossInputs(config));
  TAOPD_RETURN_IF_ERROR(CheckSampling(config.rollout, config.LossTerms()));
  TAOPD_RETURN_IF_ERROR(CheckSteps(config));
  if (config.data.filter_overlong_prompts && config.data.truncation != Truncation::kError) {
    return InvalidArgument(
        "data.truncation = ", NameOf(config.data.truncation),
        " cuts over-long prompts and data.filter_overlong_prompts drops them: choose one");
  }
  return absl::OkStatus();
}

}  // namespace taopd
