#include "trainer/config/train_config.h"

#include <algorithm>

#include "taopd/objective/check_objective.h"
#include "trainer/config/signals.h"

namespace taopd {

namespace {

constexpr std::string_view kDefaultObjective = InfoOf(Objective()).name;

absl::Status CheckObjective(ObjectiveConfig& config) {
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
  if (config.name.empty() && config.terms.empty()) config.name = std::string(kDefaultObjective);
  const ObjectiveTerms terms = config.Terms();
  if (const std::string problem = ProblemOf(terms); !problem.empty())
    return InvalidArgument("objective: ", problem);
  if ((NeedsOf(terms) & kNeedsFullVocabulary) == 0) return absl::OkStatus();
  if (config.support != SupportChoice::kTeacher) {
    return InvalidArgument("objective.support = ", WordOf(config.support), ": ", NameOf(terms),
                           " compares the whole vocabulary; leave it at teacher");
  }
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const ObjectiveInfo& info = InfoOf(terms.term[i].objective);
    if ((info.needs & kNeedsSupport) != 0 && (info.needs & kNeedsFullVocabulary) == 0) {
      return InvalidArgument(
          "objective.terms: ", info.name,
          " compares the top-k, others the whole vocabulary; they cannot be combined");
    }
  }
  return absl::OkStatus();
}

// Truncated sampling never draws some tokens, so an estimate from the sampled token lacks their
// part, whatever its factor.
absl::Status CheckSampling(const RolloutConfig& rollout, const ObjectiveTerms& terms) {
  if (rollout.top_p == 1 && rollout.top_k == 0) return absl::OkStatus();
  const std::string setting = rollout.top_p == 1 ? Concat("rollout.top_k = ", rollout.top_k)
                                                 : Concat("rollout.top_p = ", rollout.top_p);
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const ObjectiveInfo& info = InfoOf(terms.term[i].objective);
    if ((info.needs & kReadsBehavior) == 0) continue;
    return InvalidArgument(setting, ": the sampled distribution is truncated, and ", info.name,
                           " estimates a mean over the student's whole distribution from the "
                           "sampled token; use top_p = 1 and top_k = 0, or an objective that does "
                           "not, such as ",
                           kDefaultObjective);
  }
  return absl::OkStatus();
}

}  // namespace

int64_t DataConfig::LongestSentPrompt() const {
  if (!HasTeacherPrompt()) return max_prompt_length;
  const bool sends_plain = teacher_prompt_missing == MissingTeacherPrompt::kPlain || HasSibling();
  return sends_plain ? std::max(max_prompt_length, MaxTeacherPromptLength())
                     : MaxTeacherPromptLength();
}

ObjectiveTerms ObjectiveConfig::Terms() const {
  std::vector<ObjectiveTermConfig> configs = terms;
  if (configs.empty())
    configs.push_back({name.empty() ? std::string(kDefaultObjective) : name, 1.0});
  ObjectiveTerms combination;
  combination.num_terms = static_cast<int32_t>(configs.size());
  for (size_t i = 0; i < configs.size(); ++i) {
    Objective objective = *FindObjective(configs[i].name);
    static_cast<ObjectiveParameters&>(objective) = parameters;
    combination.term[i] = {objective, configs[i].weight};
  }
  return combination;
}

Recompute RecomputeOf(const TrainerConfig& config) {
  if (config.recompute == RecomputeChoice::kFull) return Recompute::kFull;
  return config.recompute == RecomputeChoice::kAttention ? Recompute::kAttention : Recompute::kNone;
}

namespace {

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
        "rollout.eval_endpoints: is for eval.mode = beside with eval.measure = accuracy; other "
        "evaluations are computed by the trainer");
  }
  if (eval.mode == EvalMode::kBlocking) {
    if (eval.kv_cache_gb == EvalConfig().kv_cache_gb) return absl::OkStatus();
    return InvalidArgument("eval.kv_cache_gb = ", eval.kv_cache_gb,
                           ": is for eval.mode = beside; blocking evaluations have the pool of "
                           "rollout.kv_cache_gb");
  }
  if (eval.measure != EvalMeasure::kKl || !FollowsStudent(config.teacher, config.teachers))
    return absl::OkStatus();
  return InvalidArgument(
      "eval.mode = beside with eval.measure = kl: the weights of the student as its own teacher "
      "would change during an evaluation; use eval.mode = blocking, or teacher.weights = start "
      "with teacher.refresh_every = 0");
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
  const int64_t of_siblings =
      std::count(names.begin(), names.end(), kSibling) * data.max_response_length;
  if (data.MaxTeacherPromptLength() <= of_siblings) {
    return InvalidArgument("data.max_teacher_prompt_length = ", data.max_teacher_prompt_length,
                           ": leaves no room beside the ", of_siblings,
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

}  // namespace

absl::Status CheckTrainConfig(TrainConfig& config) {
  TAOPD_RETURN_IF_ERROR(CheckSettings(DescribeSettings(config)));
  TAOPD_RETURN_IF_ERROR(CheckTeachers(config.teacher, config.teachers));
  TAOPD_RETURN_IF_ERROR(CheckTeacherPrompt(config));
  TAOPD_RETURN_IF_ERROR(CheckRolloutEndpoints(config.rollout));
  TAOPD_RETURN_IF_ERROR(CheckAsyncTeacher(config));
  TAOPD_RETURN_IF_ERROR(CheckEvalMode(config));
  if (config.student.lora.is_on() && !config.student.tokenizer.empty())
    return LoraWithTokenizer("student");
  TAOPD_RETURN_IF_ERROR(CheckObjective(config.objective));
  TAOPD_RETURN_IF_ERROR(CheckSignals(config));
  TAOPD_RETURN_IF_ERROR(CheckSampling(config.rollout, config.LossTerms()));
  if (config.trainer.early_stop_evaluations > 0 && config.trainer.best_metric.empty()) {
    return InvalidArgument(
        "trainer.early_stop_evaluations = ", config.trainer.early_stop_evaluations,
        ": needs trainer.best_metric, which is empty");
  }
  const double below = config.objective.parameters.mask_rho_below;
  const double above = config.objective.parameters.mask_rho_above;
  if (above > 0 && (above < 1 || above < below)) {
    return InvalidArgument("objective.mask_rho_above = ", above,
                           ": must be at least 1 and mask_rho_below = ", below);
  }
  if (config.rollout.cuda_graphs && config.trainer.kernels == kKernelsComposed) {
    return InvalidArgument(
        "rollout.cuda_graphs = true: trainer.kernels = composed has no kernel that a graph can "
        "replay");
  }
  if (config.data.train_batch_size % config.trainer.mini_batch_size != 0) {
    return InvalidArgument("trainer.mini_batch_size = ", config.trainer.mini_batch_size,
                           ": must divide data.train_batch_size = ", config.data.train_batch_size);
  }
  if (config.dist.deterministic && config.dist.gradients == GradientSums::kSharded) {
    return InvalidArgument(
        "dist.gradients = sharded: the order of its sums depends on the number of ranks, which "
        "dist.deterministic rules out; use whole");
  }
  if (config.data.filter_overlong_prompts && config.data.truncation != Truncation::kError) {
    return InvalidArgument(
        "data.truncation = ", WordOf(config.data.truncation),
        " cuts over-long prompts and data.filter_overlong_prompts drops them: choose one");
  }
  return absl::OkStatus();
}

}  // namespace taopd
