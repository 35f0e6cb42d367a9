// Declares the settings of `taopd-trainer train` and `eval`: names, texts and ranges.
#include "taopd/objective/objective_parameters.h"
#include "trainer/config/train_config.h"
#include "trainer/grading/grader.h"
#include "trainer/http/server_address.h"

namespace taopd {
namespace {

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

// Accepts the name of a grader, or a URL that begins with http:// or https://.
absl::Status CheckEvalGrader(const std::string& grader) {
  if (grader.find("://") != std::string::npos) return ParseHttpUrl(grader).status();
  return OneOf(grading::GraderNames())(grader);
}

// Settings of prompts that only the teacher sees.
void VisitTeacherPrompt(DataConfig& c, SettingVisitor& v) {
  v.Setting("teacher_prompt_key", &c.teacher_prompt_key,
            "Key of a prompt for the teacher, read as the student's; the teacher scores the "
            "responses after it. Empty: the teacher sees the student's prompt.");
  v.Setting("teacher_prompt_template", &c.teacher_prompt_template,
            "In place of a key, words around the prompt for the teacher, such as '{prompt} "
            "Solution: {solution}'. {prompt}, {answer} and the row's keys stand for their text, "
            "{sibling} for another response of this step to the same prompt that is right; {{ and "
            "}} stand for braces.");
  v.Setting("teacher_prompt_missing", &c.teacher_prompt_missing,
            "What to do if a row lacks a part of the teacher's prompt, or no sibling is right: "
            "error; plain: the teacher sees the student's prompt; skip: leave the row out, or the "
            "response out of the loss. teacher/prompt_missing counts.");
  v.Setting("max_teacher_prompt_length", &c.max_teacher_prompt_length,
            "Longest prompt of the teacher in tokens, of which each {sibling} takes "
            "max_response_length; longer ones are refused, or dropped with "
            "filter_overlong_prompts. 0 = max_prompt_length.",
            AtLeast<int64_t>(0));
}

// Settings of given responses.
void VisitOffPolicy(DataConfig& c, SettingVisitor& v) {
  v.Setting(
      "response_key", &c.response_key,
      "Key of a row's own response, for offpolicy_fraction: text, or token ids under KEY_ids. "
      "The model's end-of-sequence token is added where it is missing.");
  v.Setting("offpolicy_fraction", &c.offpolicy_fraction,
            "Share of a step's prompts, drawn by the step's seed, that are trained on their rows' "
            "own responses, scored by the teacher, instead of rollouts (1 - lambda of GKD's mixing "
            "is the rest). 0 = none.",
            Between(0.0, 1.0));
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

void StudentConfig::Visit(SettingVisitor& v) {
  v.Setting("model", &model,
            "Hugging Face model directory to start from, or the directory of a PEFT adapter, "
            "which is trained further with lora.rank, and otherwise merged into its base.",
            NotEmpty());
  v.Setting("tokenizer", &tokenizer,
            "Directory of another model's tokenizer, whose special tokens and template the "
            "student takes over; empty: the student's own.")
      .MayChange();
  v.Setting("dtype", &dtype,
            "Computation and parameters: auto (as stored), float32, bfloat16 (see "
            "optimizer.master).",
            OneOf({"auto", "float32", "bfloat16"}));
  v.Section("lora", "Low-rank adapters (LoRA).", lora);
}

void DataConfig::Visit(SettingVisitor& v) {
  v.Setting("train", &train,
            "JSON Lines or Parquet files of prompts; a prompt is text, a list of messages (as in "
            "verl's files), or token ids under PROMPT_KEY_ids.")
      .MayChange();
  v.Setting("train_weights", &train_weights,
            "How often each file's prompts are used in an epoch, one number for each file; 0.5 = "
            "half of them, another half in the next epoch. Empty: all once.");
  v.Setting("val", &val, "JSON Lines or Parquet files of held-out problems for the evaluation.")
      .MayChange();
  v.Setting("prompt_key", &prompt_key, "Key of the prompt; a.b is the key b inside of a.",
            NotEmpty());
  v.Setting("answer_key", &answer_key,
            "Key of the right answer, for the accuracy; a row that lacks it may have verl's "
            "reward_model.ground_truth.",
            NotEmpty());
  v.Setting("source_key", &source_key,
            "Key of the data set's name, by which evaluations are reported.", NotEmpty());
  v.Setting(
      "system_prompt", &system_prompt,
      "System message of training prompts that bring none; for data.val see eval.system_prompt.");
  v.Setting("prompt_template", &prompt_template,
            "Words around a training prompt: a text with {question}, or boxed, boxed_system, "
            "dapo, gsm8k, ta_opd_eval; for data.val see eval.prompt_template.");
  v.Setting("apply_chat_template", &apply_chat_template,
            "auto: the model's chat template renders messages, and text stays as it is; always: "
            "text becomes a user message; never: messages become their contents, joined by empty "
            "lines (models without a template).");
  v.Setting("train_batch_size", &train_batch_size, "Prompts per step.", AtLeast<int64_t>(1));
  v.Setting("max_prompt_length", &max_prompt_length, "Longest prompt in tokens.",
            AtLeast<int64_t>(1));
  v.Setting("max_response_length", &max_response_length, "Maximum number of tokens to generate.",
            AtLeast<int64_t>(1));
  v.Setting("filter_overlong_prompts", &filter_overlong_prompts,
            "Drop (and count) longer prompts; otherwise truncation decides.");
  v.Setting("truncation", &truncation,
            "Treatment of longer prompts that are not dropped: error, or cut off (and count) the "
            "left end, the right end or the middle.");
  VisitPrompts(v);
  VisitTeacherPrompt(*this, v);
  VisitOffPolicy(*this, v);
}

void RolloutConfig::Visit(SettingVisitor& v) {
  v.Setting("n", &n, "Responses per prompt.", AtLeast<int64_t>(1));
  v.Setting("temperature", &temperature, "Sampling temperature; the loss uses the same.",
            MoreThan(0.0));
  v.Setting("top_p", &top_p, "Nucleus sampling; 1 = off.", Fraction());
  v.Setting("top_k", &top_k, "Sample from the k most probable tokens; 0 = off.",
            AtLeast<int64_t>(0));
  v.Setting("mask_truncated", &mask_truncated,
            "Leave responses that are cut at data.max_response_length out of the loss, and out "
            "of what its mean divides by, as verl does; rollout/masked_share counts them.");
  v.Setting("max_num_seqs", &max_num_seqs, "Sequences generated at once.", AtLeast<int64_t>(1))
      .MayChange();
  v.Setting(
       "kv_cache_gb", &kv_cache_gb,
       "Maximum memory of the rollouts' KV cache, in GiB; auto: the memory that the plan leaves.",
       AutoOr(MoreThan(0.0)))
      .MayChange();
  v.Setting("cuda_graphs", &cuda_graphs,
            "Capture decode steps as CUDA graphs and replay them; they are captured again for "
            "each step's rollouts. Has never run on a GPU; refused if the device is a CPU.")
      .MayChange();
  VisitEndpoints(v);
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
      "Number of steps by which generation is ahead of training. 0: a step trains on responses of "
      "the current weights. N: the responses of step s come from exactly the weights after step "
      "s - N - 1, or from those of the start, and are generated while earlier steps are scored, "
      "trained, evaluated and saved.",
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

void EvalConfig::Visit(SettingVisitor& v) {
  v.Setting("measure", &measure,
            "accuracy: generate and grade; kl: truncated reverse KL to the teacher on given "
            "responses; none.")
      .MayChange();
  v.Setting("mode", &mode,
            "blocking: training waits for its evaluations; beside: they measure a copy of the "
            "weights while training goes on, and give way to rollouts "
            "(docs/evaluation.md). `taopd-trainer eval` trains nothing and ignores it.")
      .MayChange();
  v.Setting("kv_cache_gb", &kv_cache_gb,
            "Maximum memory of the KV cache of evaluations beside training, in GiB; blocking "
            "ones use that of the rollouts.",
            MoreThan(0.0))
      .MayChange();
  v.Setting("system_prompt", &system_prompt, "System message of problems that bring none.")
      .MayChange();
  v.Setting("prompt_template", &prompt_template,
            "Words around a problem, as data.prompt_template; ta_opd_eval is the paper's "
            "evaluation prompt.")
      .MayChange();
  v.Setting("n", &n, "Responses per problem (Avg@n).", AtLeast<int64_t>(1)).MayChange();
  v.Setting("n_by_source", &n_by_source,
            "Other numbers of responses for problems of some sources, each SOURCE=N; the paper "
            "samples MMLU-Pro once.")
      .MayChange();
  v.Setting("temperature", &temperature, "Sampling temperature; 0 = greedy.", AtLeast(0.0))
      .MayChange();
  v.Setting("top_p", &top_p, "Nucleus sampling; 1 = off.", Fraction()).MayChange();
  v.Setting("max_response_length", &max_response_length, "Maximum number of tokens to generate.",
            AtLeast<int64_t>(1))
      .MayChange();
  v.Setting("num_prompts", &num_prompts, "Use only this many problems, from the first on; 0 = all.",
            AtLeast<int64_t>(0))
      .MayChange();
  v.Setting("grader", &grader,
            "How answers are judged: one of `taopd-trainer grade --list`, or the URL of a server "
            "whose rewards above 0.5 mean right (docs/rewards.md).",
            SettingCheck<std::string>(CheckEvalGrader))
      .MayChange();
  v.Setting("answer_pattern", &answer_pattern,
            "RE2 expression whose first group is the answer in a response (exact, numeric); its "
            "first match counts. Empty: all text.")
      .MayChange();
  v.Setting("require_stop", &require_stop,
            "Count a response that is cut at max_response_length as wrong.")
      .MayChange();
  v.Setting("kl_top_k", &kl_top_k, "Teacher tokens per position for measure kl; 0 = teacher.top_k.",
            AtLeast<int64_t>(0))
      .MayChange();
  v.Setting("num_samples", &num_samples, "Responses written to samples.jsonl per evaluation.",
            AtLeast<int64_t>(0))
      .MayChange();
}

void DistConfig::Visit(SettingVisitor& v) {
  v.Setting("gradients", &gradients,
            "Gradients that a rank keeps. whole: sums for all parameters, sent once per "
            "mini-batch; sharded: sums for its slice of the parameters, with gradients sent for "
            "every micro-batch; auto: sharded only if the memory plan has no room for whole.")
      .MayChange();
  v.Setting("deterministic", &deterministic,
            "Cut each mini-batch into dist.shares parts and add their gradients in a fixed order, "
            "so that the weights do not depend on the number of ranks, bit for bit, if "
            "trainer.num_threads is the same.");
  v.Setting("shares", &shares,
            "Parts of a mini-batch for dist.deterministic; each rank takes 1, 2, 4, ... of them.",
            AtLeast<int64_t>(1));
  v.Setting("interface", &interface,
            "Network interface, or address of this machine, at which the ranks meet and watch "
            "each other. Empty: the address from which this machine reaches the master.")
      .MayChange();
  v.Setting("collective_timeout_s", &collective_timeout_s,
            "Time for which a rank waits in a collective operation for ranks that live but do "
            "not join it.",
            MoreThan(0.0))
      .MayChange();
  v.Setting("heartbeat_timeout_s", &heartbeat_timeout_s,
            "If a rank sends no heartbeat for this time, all ranks end.", AtLeast(1.0))
      .MayChange();
}

void TrainConfig::Visit(SettingVisitor& v) {
  v.Section("run", "The run itself.", run);
  v.Section("student", "The model that learns.", student);
  v.Section("teacher", "The model that scores.", teacher);
  v.List("teachers", &teachers,
         "In place of teacher.endpoints, several teachers: [{name: math, endpoints: "
         "[\"grpc://a:50051\"], sources: [gsm8k]}, {name: rest, endpoints: "
         "[\"grpc://b:50051\"]}].");
  v.Section("data", "Prompts.", data);
  v.Section("rollout", "Generation by the student.", rollout);
  v.Section("objective", "The loss of a position and how positions are summed.", objective);
  v.Section("reward",
            "Rewards of the responses, which add the term policy_gradient to the loss; see "
            "docs/rewards.md.",
            reward);
  v.Section("optimizer", "AdamW and its schedule.", optimizer);
  v.Section("trainer", "Steps, batches, evaluation, checkpoints, ports.", trainer);
  v.Section("eval", "Held-out evaluation; the same keys serve `taopd-trainer eval`.", eval);
  v.Section("guard", "Guards against collapse; see docs/run-control.md.", guard);
  v.Section("dist", "Several ranks; see docs/scaling.md.", dist);
}

}  // namespace taopd
