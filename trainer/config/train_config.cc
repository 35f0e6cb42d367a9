#include "trainer/config/train_config.h"

#include <algorithm>

#include "taopd/objective/check_objective.h"
#include "taopd/objective/objective_parameters.h"
#include "trainer/config/signals.h"
#include "trainer/http/server_address.h"

namespace taopd {

namespace {

constexpr std::string_view kDefaultObjective = InfoOf(Objective()).name;

std::vector<std::string> ObjectiveNames() {
  std::vector<std::string> names;
  for (const ObjectiveInfo& row : AllObjectives()) names.emplace_back(row.name);
  return names;
}

absl::Status CheckBestMetric(const std::string& name) {
  return name.empty() || name.substr(0, name.find('/')) == "eval"
             ? absl::OkStatus()
             : InvalidArgument("must be a metric of the evaluations: eval/...");
}

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

// Settings of when checkpoints are written and which are kept.
void VisitSaving(TrainerConfig& c, SettingVisitor& v) {
  v.Setting("save_every", &c.save_every,
            "Steps between checkpoints; the last step is always saved. 0 = only then.",
            AtLeast<int64_t>(0))
      .MayChange();
  v.Setting("save_minutes", &c.save_minutes,
            "Also write a checkpoint after the first step that ends this many minutes after the "
            "last checkpoint; 0 = never.",
            AtLeast(0.0))
      .MayChange();
  v.Setting("stop_grace_s", &c.stop_grace_s,
            "If a run is asked to stop after the first update of a step, it finishes the step if "
            "that is likely to take at most this many seconds. Otherwise it saves between two "
            "mini-batches, with the rest of the step. Leave time for a checkpoint before the "
            "supervisor kills the run.",
            AtLeast(0.0))
      .MayChange();
  v.Setting("stall_timeout_s", &c.stall_timeout_s,
            "If for this many seconds no micro-batch, decoding step, reply of a teacher or "
            "checkpoint has begun or ended, /healthz answers 503 and systemd's watchdog is no "
            "longer fed, so that the supervisor starts the run again; 0 = never. It must be longer "
            "than the longest of these takes.",
            AtLeast(0.0))
      .MayChange();
  v.Setting(
       "async_save", &c.async_save,
       "Write the checkpoints of save_every and save_minutes beside the next step, from a copy "
       "of the student and its optimizer: on, off, or auto: if the memory plan has room for "
       "the copy.")
      .MayChange();
  v.Setting("keep_every", &c.keep_every,
            "Also keep every checkpoint whose step is a multiple of this number; 0 = none.",
            AtLeast<int64_t>(0))
      .MayChange();
}

// Settings of memory, and files for inspection.
void VisitInspection(TrainerConfig& c, SettingVisitor& v) {
  v.Setting("memory_plan", &c.memory_plan,
            "What to do when the memory plan exceeds the device: refuse the run, warn, or off.")
      .MayChange();
  v.Setting("trace_steps", &c.trace_steps,
            "Write a timeline of this many first steps of the process to RUN_DIR/trace.json, for "
            "chrome://tracing or Perfetto.",
            AtLeast<int64_t>(0))
      .MayChange();
  v.Setting("rollout_dumps", &c.rollout_dumps,
            Concat("Rollouts of each step that are written to RUN_DIR/rollouts.jsonl. A file of "
                   "more than ",
                   TrainerConfig::kMaxRolloutLogBytes >> 20,
                   " MiB is renamed to rollouts.1.jsonl, which it replaces."),
            AtLeast<int64_t>(0))
      .MayChange();
  v.Setting("cpu_memory_limit", &c.cpu_memory_limit,
            "Memory that each rank may take on the CPU, a size such as 24GiB, for the memory plan; "
            "0 means 0.9 of what is available, divided among the ranks of the machine.",
            MemorySize())
      .MayChange();
  v.Setting("peak_flops", &c.peak_flops,
            "Peak of the device in FLOP/s, for perf/mfu. 0: measured at the start on a CPU, by a "
            "product of matrices; on other devices there is no perf/mfu then.",
            AtLeast(0.0))
      .MayChange();
}

}  // namespace

absl::Status CheckEvalGrader(const std::string& grader) {
  if (grader.find("://") != std::string::npos) return ParseHttpUrl(grader).status();
  return OneOf(grading::GraderNames())(grader);
}

void DataConfig::VisitTeacherPrompt(SettingVisitor& v) {
  v.Setting("teacher_prompt_key", &teacher_prompt_key,
            "Key of a prompt for the teacher, read as the student's; the teacher scores the "
            "responses behind it. Empty: the teacher sees the student's prompt.");
  v.Setting("teacher_prompt_template", &teacher_prompt_template,
            "In place of a key, words around the prompt for the teacher, such as '{prompt} "
            "Solution: {solution}'. {prompt}, {answer} and the row's keys stand for their text, "
            "{sibling} for another response of this step to the same prompt that is right; {{ and "
            "}} stand for braces.");
  v.Setting("teacher_prompt_missing", &teacher_prompt_missing,
            "What to do if a row lacks a part of the teacher's prompt, or no sibling is right: "
            "error; plain: the teacher sees the student's prompt; skip: leave the row out, or the "
            "response out of the loss. teacher/prompt_missing counts.");
  v.Setting("max_teacher_prompt_length", &max_teacher_prompt_length,
            "Longest prompt of the teacher in tokens, of which each {sibling} takes "
            "max_response_length; longer ones are refused, or dropped with "
            "filter_overlong_prompts. 0 = max_prompt_length.",
            AtLeast<int64_t>(0));
}

int64_t DataConfig::LongestSentPrompt() const {
  if (!HasTeacherPrompt()) return max_prompt_length;
  const bool sends_plain = teacher_prompt_missing == MissingTeacherPrompt::kPlain || HasSibling();
  return sends_plain ? std::max(max_prompt_length, MaxTeacherPromptLength())
                     : MaxTeacherPromptLength();
}

void ObjectiveTermConfig::Visit(SettingVisitor& v) {
  v.Setting("name", &name, "An objective.", OneOf(ObjectiveNames()));
  v.Setting("weight", &weight, "Factor of its loss.");
}

void ObjectiveConfig::Visit(SettingVisitor& v) {
  std::vector<std::string> names = ObjectiveNames();
  names.emplace_back("");
  v.Setting("name", &name,
            "Loss of a position; `taopd-trainer objectives` lists them. Empty: ta_opd, or what "
            "terms says.",
            OneOf(std::move(names)));
  v.List("terms", &terms,
         "In place of name, a weighted sum: [{name: ta_opd, weight: 1}, {name: sampled_token, "
         "weight: 0.1}].");
  v.Setting("support", &support,
            "Model whose top-k tokens are compared one by one: teacher, student (the policy that "
            "generated), or union of both.");
  v.Setting("student_top_k", &student_top_k,
            "Student tokens per position for support student and union; 0 = teacher.top_k.",
            AtLeast<int64_t>(0));
  for (const ObjectiveParameter& parameter : kObjectiveParameters) {
    if (parameter.read_by == kReadsClip) continue;  // of the section reward
    v.Setting(std::string(parameter.name), &(parameters.*parameter.value),
              std::string(parameter.summary),
              SettingCheck<double>([&parameter](const double& value) {
                return parameter.IsInRange(value) ? absl::OkStatus()
                                                  : InvalidArgument("must be ", parameter.range);
              }));
  }
  v.Setting("aggregation", &aggregation,
            "token-mean, seq-mean-token-mean or seq-mean-token-sum, as in verl.");
  v.Setting("full_kl_rows", &full_kl_rows,
            "Positions per step on which the full-vocabulary KL and the truncation gap are "
            "measured, before the first update; needs a teacher that sends dense log-probs. 0 = "
            "none; with objective full it is every position.",
            AtLeast<int64_t>(0))
      .MayChange();
  v.Setting("veto_rho_below", &veto_rho_below,
            "Leave out a whole response of a reused batch when the importance ratio of one of its "
            "tokens is below this number, such as 1e-4; costs a second pass over the head. 0 = "
            "never.",
            Between(0.0, 1.0));
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

void TrainerConfig::Visit(SettingVisitor& v) {
  v.Setting("total_steps", &total_steps, "Steps; one step is one batch of prompts.",
            AtLeast<int64_t>(1))
      .MayChange();
  v.Setting("mini_batch_size", &mini_batch_size,
            "Prompts per optimizer step; from the second one of a step on, the behavior policy "
            "is not the current one.",
            AtLeast<int64_t>(1));
  v.Setting("micro_batch_tokens", &micro_batch_tokens,
            "Tokens per forward and backward pass; one longer sequence goes alone. auto: as many "
            "as fit, up to 16384.",
            AutoOr(AtLeast<int64_t>(1)))
      .MayChange();
  v.Setting(
      "async_steps", &async_steps,
      "Steps that generation is ahead of training. 0: a step trains on responses of the "
      "present weights. N: the responses of step s come from exactly the weights after step "
      "s - N, or from the start's, and are generated while earlier steps are scored, trained, "
      "evaluated and saved.",
      Between<int64_t>(0, kMaxAsyncSteps));
  v.Setting("recompute", &recompute,
            "Activations that the backward pass computes again to save memory: none; attention, "
            "with its projections; full, everything between layers; auto: the first of these with "
            "which the memory plan fits. The gradients are the same.")
      .MayChange();
  v.Setting("eval_at_start", &eval_at_start, "Evaluate the student before the first step.")
      .MayChange();
  v.Setting("eval_every", &eval_every,
            "Steps between evaluations; the last step is always evaluated. 0 = only then.",
            AtLeast<int64_t>(0))
      .MayChange();
  VisitSaving(*this, v);
  v.Setting("best_metric", &best_metric,
            "Metric of the evaluations, such as eval/kl_to_teacher, by which the best checkpoint "
            "is kept; best.json names it. Empty: none.",
            SettingCheck<std::string>(CheckBestMetric))
      .MayChange();
  v.Setting("best_is", &best_is, "Which value of best_metric is the best: smallest or largest.")
      .MayChange();
  v.Setting("early_stop_evaluations", &early_stop_evaluations,
            "Finish after this many consecutive evaluations without a new best of best_metric; 0 = "
            "never.",
            AtLeast<int64_t>(0))
      .MayChange();
  v.Setting("max_wall_time_s", &max_wall_time_s,
            "Save and end with code 78 before this process has run for this time, with room for "
            "one more step and a checkpoint; 0 = no limit.",
            AtLeast(0.0))
      .MayChange();
  v.Setting("max_nonfinite_steps", &max_nonfinite_steps,
            "Consecutive steps without any update, because losses or gradients are not finite, "
            "after which the run ends with code 76.",
            AtLeast<int64_t>(1))
      .MayChange();
  v.Setting("max_bad_batches", &max_bad_batches,
            "Maximum number of skipped mini-batches that are written to RUN_DIR/bad_batches.",
            AtLeast<int64_t>(0))
      .MayChange();
  VisitInspection(*this, v);
  VisitProcess(v);
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
