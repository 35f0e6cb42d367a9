// Declares the settings of `taopd-trainer train` and `eval`: names, texts and ranges.
#include "taopd/objective/check_objective.h"
#include "trainer/config/train_config.h"
#include "trainer/grading/grader.h"
#include "trainer/net/server_address.h"

namespace taopd {
namespace {

std::vector<std::string> ObjectiveNames() {
  std::vector<std::string> names;
  for (const ObjectiveInfo& row : kObjectives) names.emplace_back(row.name);
  return names;
}

// Accepts the name of a grader, or a URL that begins with http:// or https://.
absl::Status CheckEvalGrader(const std::string& grader) {
  if (grader.find("://") != std::string::npos) return ParseHttpUrl(grader).status();
  return OneOf(grading::GraderNames())(grader);
}

// Settings of prompts that only the teacher sees.
void DeclareTeacherPrompt(DataConfig& data, SettingTable& keys) {
  keys.Add(
          "teacher_prompt_key", &data.teacher_prompt_key,
          "Key of a prompt for the teacher, which is read like the student's. The teacher scores "
          "the responses after this prompt. If it is empty, the teacher sees the student's prompt.")
      .DecidesScores();
  keys.Add("teacher_prompt_template", &data.teacher_prompt_template,
           "Template of the teacher's prompt, as an alternative to a key, such as '{prompt} "
           "Solution: {solution}'. {prompt}, {answer} and the row's keys stand for their text. "
           "{sibling} stands for another response of this step to the same prompt that is right. "
           "{{ and }} are literal braces.")
      .DecidesScores();
  keys.Add("teacher_prompt_missing", &data.teacher_prompt_missing,
           "What to do if a row lacks a part of the teacher's prompt, or if no sibling is right. "
           "With error, the run ends. With plain, the teacher sees the student's prompt. With "
           "skip, the row is dropped, or the response is left out of the loss. The metric "
           "teacher/prompt_missing counts these cases.")
      .DecidesScores();
  keys.Add("max_teacher_prompt_length", &data.max_teacher_prompt_length,
           "Maximum length of the teacher's prompt in tokens, of which each {sibling} takes "
           "max_response_length. Longer prompts are refused, or dropped with "
           "filter_overlong_prompts. 0 means max_prompt_length.",
           AtLeast<int64_t>(0))
      .DecidesScores();
}

// Settings of given responses.
void DeclareOffPolicy(DataConfig& data, SettingTable& keys) {
  keys.Add(
      "response_key", &data.response_key,
      "Key of a row's own response, which offpolicy_fraction uses: text, messages, or token ids "
      "under KEY_ids. Text and ids get the model's end-of-sequence token where it is missing.");
  keys.Add("offpolicy_fraction", &data.offpolicy_fraction,
           "Share of a step's prompts, drawn with the step's seed, for which training uses the "
           "row's own response instead of rollouts. The teacher scores these responses too. GKD "
           "calls this share 1 - lambda. 0 means none.",
           Between(0.0, 1.0));
}

// Settings of when checkpoints are written and which are kept.
void DeclareSaving(TrainerConfig& trainer, SettingTable& keys) {
  keys.AddMutable("save_every", &trainer.save_every,
                  "Number of steps between checkpoints. The last step is always saved. 0 means "
                  "only the last step.",
                  AtLeast<int64_t>(0));
  keys.AddMutable("save_minutes", &trainer.save_minutes,
                  "Also write a checkpoint after the first step that ends this many minutes after "
                  "the last checkpoint. 0 means never.",
                  AtLeast(0.0));
  keys.AddMutable(
      "stop_grace_s", &trainer.stop_grace_s,
      "If a run is asked to stop after the first update of a step, it finishes the step if that is "
      "likely to take at most this many seconds. Otherwise it saves between two mini-batches, with "
      "the rest of the step. Leave the supervisor's grace period enough time for a checkpoint.",
      AtLeast(0.0));
  keys.AddMutable(
      "stall_timeout_s", &trainer.stall_timeout_s,
      "If no micro-batch, decoding step, attempt at a teacher or checkpoint begins or ends for "
      "this many seconds, /healthz answers 503 and the watchdog of systemd is no longer notified, "
      "so the supervisor restarts the run. Failed attempts count as well. The limit must be longer "
      "than the longest of these operations. 0 means never.",
      AtLeast(0.0));
  keys.AddMutable("async_save", &trainer.async_save,
                  "Whether the checkpoints of save_every and save_minutes are written while the "
                  "next step runs, from a copy of the student and its optimizer. The value is on, "
                  "off, or auto, which means on if the memory plan has room for the copy.");
  keys.AddMutable(
      "keep_every", &trainer.keep_every,
      "Also keep every checkpoint whose step is a multiple of this number. 0 means none.",
      AtLeast<int64_t>(0));
}

// Settings of memory, and files for inspection.
void DeclareInspection(TrainerConfig& trainer, SettingTable& keys) {
  keys.AddMutable("memory_plan", &trainer.memory_plan,
                  "What to do if the memory plan exceeds the device's memory: refuse the run, "
                  "warn, or do nothing (off).");
  keys.AddMutable("trace_steps", &trainer.trace_steps,
                  "Number of steps after the start of the process whose timeline is written to "
                  "RUN_DIR/trace.json, for chrome://tracing or Perfetto.",
                  AtLeast<int64_t>(0));
  keys.AddMutable("rollout_dumps", &trainer.rollout_dumps,
                  Concat("Number of rollouts per step that are written to RUN_DIR/rollouts.jsonl. "
                         "When the file exceeds ",
                         TrainerConfig::kMaxRolloutLogBytes >> 20,
                         " MiB, it is renamed to rollouts.1.jsonl and replaces the previous one."),
                  AtLeast<int64_t>(0));
  keys.AddMutable("cpu_memory_limit", &trainer.cpu_memory_limit,
                  "CPU memory that the memory plan allows each rank, as a size such as 24GiB. With "
                  "0, the ranks of a machine share 0.9 of its available memory.",
                  MemorySize());
  keys.AddMutable(
      "peak_flops", &trainer.peak_flops,
      "Peak rate of the device in FLOP/s, for the metric perf/mfu. With 0, the peak of a CPU is "
      "measured at the start with a product of matrices, and other devices have no perf/mfu.",
      AtLeast(0.0));
}

}  // namespace

void StudentConfig::Declare(SettingTable& keys) {
  keys.Add(
      "model", &model,
      "Hugging Face model directory to start from, or directory of a PEFT adapter. If lora.rank is "
      "set, training continues the adapter; otherwise the adapter is merged into its base.",
      NotEmpty());
  keys.AddMutable("tokenizer", &tokenizer,
                  "Directory of another model's tokenizer, whose special tokens and template the "
                  "student takes over. If it is empty, the student keeps its own tokenizer.");
  keys.Add("dtype", &dtype,
           "Data type of the parameters and of the computation: float32, bfloat16 (see "
           "optimizer.master), or auto, which keeps the stored type.",
           OneOf({"auto", "float32", "bfloat16"}));
  keys.AddSection("lora", "Low-rank adapters (LoRA).", lora);
}

void DataConfig::Declare(SettingTable& keys) {
  keys.AddMutable("train", &train,
                  "JSON Lines or Parquet files of prompts. A prompt is text, a list of messages "
                  "(as in verl's files), or token ids under PROMPT_KEY_ids.");
  keys.Add("train_weights", &train_weights,
           "How often each file's prompts are used in an epoch, as one number per file. 0.5 uses "
           "one half in this epoch and the other half in the next. If the list is empty, every "
           "prompt is used once.");
  keys.AddMutable("val", &val,
                  "JSON Lines or Parquet files of held-out problems for the evaluation.");
  keys.Add("prompt_key", &prompt_key, "Key of the prompt. a.b is the key b inside of a.",
           NotEmpty());
  keys.Add("answer_key", &answer_key,
           "Key of the correct answer, against which responses are graded. A row without it may "
           "have verl's reward_model.ground_truth.",
           NotEmpty());
  keys.Add("source_key", &source_key,
           "Key of the data set's name. Evaluations are reported by this name.", NotEmpty());
  keys.Add("system_prompt", &system_prompt,
           "System message that is added to training prompts without one. For data.val, see "
           "eval.system_prompt.");
  keys.Add("prompt_template", &prompt_template,
           "Template of a training prompt. It is a text that contains {question}, or one of boxed, "
           "boxed_system, dapo, gsm8k and ta_opd_eval. For data.val, see eval.prompt_template.");
  keys.Add("apply_chat_template", &apply_chat_template,
           "When to use the model's chat template. With auto, it renders messages, and text stays "
           "as it is. With always, text becomes a user message. With never, messages become their "
           "contents, joined by empty lines (for models without a template).");
  keys.Add("train_batch_size", &train_batch_size, "Number of prompts per step.",
           AtLeast<int64_t>(1));
  keys.Add("max_prompt_length", &max_prompt_length, "Maximum length of a prompt in tokens.",
           AtLeast<int64_t>(1));
  keys.Add("max_response_length", &max_response_length,
           "Maximum number of tokens to generate per response.", AtLeast<int64_t>(1));
  keys.Add(
      "filter_overlong_prompts", &filter_overlong_prompts,
      "Drop prompts that are too long, and count them. If it is false, data.truncation applies.");
  keys.Add(
      "truncation", &truncation,
      "What to do with prompts that are too long and not dropped. With error, the run ends. With "
      "left, right or middle, this end or the middle is cut off, and the prompts are counted.");
  DeclarePrompts(keys);
  DeclareTeacherPrompt(*this, keys);
  DeclareOffPolicy(*this, keys);
}

void RolloutConfig::Declare(SettingTable& keys) {
  keys.Add("n", &n, "Number of responses per prompt.", AtLeast<int64_t>(1));
  keys.Add("temperature", &temperature, "Sampling temperature, which the loss uses too.",
           MoreThan(0.0));
  keys.Add("top_p", &top_p,
           "Sample from the most probable tokens whose probabilities sum to this number (nucleus "
           "sampling). 1 turns it off.",
           Fraction());
  keys.Add("top_k", &top_k, "Sample from this number of most probable tokens. 0 turns it off.",
           AtLeast<int64_t>(0));
  keys.Add(
      "mask_truncated", &mask_truncated,
      "Leave responses that are cut at data.max_response_length out of the loss and out of the "
      "denominator of its mean, as verl does. The metric rollout/masked_share counts them.");
  keys.AddMutable("max_num_seqs", &max_num_seqs,
                  "Maximum number of sequences that are generated at a time.", AtLeast<int64_t>(1));
  keys.AddMutable(
      "kv_cache_gb", &kv_cache_gb,
      "Maximum size of the rollouts' KV cache in GiB. auto takes what the memory plan leaves.",
      AutoOr(MoreThan(0.0)));
  keys.AddMutable("cuda_graphs", &cuda_graphs,
                  "Capture decode steps as CUDA graphs and replay them. They are captured again "
                  "for each step's rollouts. auto captures them where that is possible; true is "
                  "refused where it is impossible, as on a CPU.");
  RolloutEndpointsConfig::Declare(keys);
}

void ObjectiveTermConfig::Declare(SettingTable& keys) {
  keys.Add("name", &name, "Name of the objective.", OneOf(ObjectiveNames()));
  keys.Add("weight", &weight, "Factor by which the loss of this objective is multiplied.");
}

void ObjectiveConfig::Declare(SettingTable& keys) {
  std::vector<std::string> names = ObjectiveNames();
  names.emplace_back("");
  keys.Add("name", &name,
           "Objective that defines the loss of a position. `taopd-trainer objectives` lists all. "
           "If it is empty, the objectives of terms are used, or ta_opd if there are none.",
           OneOf(std::move(names)));
  keys.AddList("terms", &terms,
               "Weighted sum of objectives, as an alternative to name: [{name: ta_opd, weight: 1}, "
               "{name: sampled_token, weight: 0.1}].");
  keys.Add("support", &support,
           "Model whose top-k tokens the loss compares one by one: teacher, student (the policy "
           "that generated the response), or union, which means both.");
  keys.Add("student_top_k", &student_top_k,
           "Number of student tokens per position if support is student or union. 0 means "
           "teacher.top_k.",
           AtLeast<int64_t>(0));
  for (const ObjectiveParameter& parameter : kObjectiveParameters) {
    if (parameter.read_by == kReadsClip) continue;  // of the section reward
    keys.Add(std::string(parameter.name), &(parameters.*parameter.value),
             std::string(parameter.summary),
             Must<double>(Concat("be ", parameter.range),
                          [&parameter](double value) { return parameter.IsInRange(value); }));
  }
  keys.Add("aggregation", &aggregation,
           "How the losses of positions are combined: token-mean, seq-mean-token-mean or "
           "seq-mean-token-sum, as in verl.");
  keys.AddMutable("full_kl_rows", &full_kl_rows,
                  "Number of positions per step at which the full-vocabulary KL and the truncation "
                  "gap are measured before the first update. This needs a teacher that sends dense "
                  "log-probs. With the objective full, every position is measured. 0 means none.",
                  AtLeast<int64_t>(0));
  keys.Add(
      "veto_rho_below", &veto_rho_below,
      "Leave out a whole response of a reused batch if the importance ratio of one of its tokens "
      "is below this number, such as 1e-4. This costs a second pass over the head. 0 means never.",
      Between(0.0, 1.0));
}

void TrainerConfig::Declare(SettingTable& keys) {
  keys.AddMutable("total_steps", &total_steps,
                  "Number of steps. A step trains on one batch of prompts.", AtLeast<int64_t>(1));
  keys.Add("mini_batch_size", &mini_batch_size,
           "Number of prompts per optimizer step. From the second mini-batch of a step on, the "
           "behavior policy is no longer the current policy.",
           AtLeast<int64_t>(1));
  keys.AddMutable("micro_batch_tokens", &micro_batch_tokens,
                  "Maximum number of tokens per forward and backward pass. A longer sequence forms "
                  "a micro-batch by itself. auto takes as many as fit, up to 16384.",
                  AutoOr(AtLeast<int64_t>(1)));
  keys.Add("async_steps", &async_steps,
           "Number of steps by which generation is ahead of training. With 0, a step trains on "
           "responses of the current weights. With N, the responses of step s come from exactly "
           "the weights after step s - N - 1, or from those of the start, and are generated while "
           "earlier steps are scored, trained, evaluated and saved.",
           Between<int64_t>(0, kMaxAsyncSteps));
  keys.AddMutable(
      "recompute", &recompute,
      "Activations that the backward pass computes again to save memory: none, those of attention "
      "and its projections (attention), or everything between layers (full). auto takes the first "
      "of these with which the memory plan fits. The gradients are the same.");
  keys.AddMutable("eval_at_start", &eval_at_start, "Evaluate the student before the first step.");
  keys.AddMutable("eval_every", &eval_every,
                  "Number of steps between evaluations. The last step is always evaluated. 0 means "
                  "only the last step.",
                  AtLeast<int64_t>(0));
  DeclareSaving(*this, keys);
  keys.AddMutable(
      "best_metric", &best_metric,
      "Metric of the evaluations, such as eval/kl_to_teacher, that selects the best checkpoint. "
      "This checkpoint is kept, and best.json names it. If the setting is empty, no checkpoint is "
      "selected.",
      Must<std::string>("be a metric of the evaluations: eval/...", [](const std::string& name) {
        return name.empty() || name.substr(0, name.find('/')) == "eval";
      }));
  keys.AddMutable("best_is", &best_is,
                  "Whether the smallest or the largest value of best_metric is the best.");
  keys.AddMutable("early_stop_evaluations", &early_stop_evaluations,
                  "End the run after this many consecutive evaluations without a new best value of "
                  "best_metric. 0 means never.",
                  AtLeast<int64_t>(0));
  keys.AddMutable("max_wall_time_s", &max_wall_time_s,
                  "Save and end with code 78 before this process has run for this many seconds, "
                  "early enough for one more step and a checkpoint. 0 means no limit.",
                  AtLeast(0.0));
  keys.AddMutable("max_nonfinite_steps", &max_nonfinite_steps,
                  "End the run with code 76 after this many consecutive steps without any update "
                  "because losses or gradients are not finite.",
                  AtLeast<int64_t>(1));
  keys.AddMutable("max_bad_batches", &max_bad_batches,
                  "Maximum number of skipped mini-batches that are written to RUN_DIR/bad_batches.",
                  AtLeast<int64_t>(0));
  DeclareInspection(*this, keys);
  DeclareProcess(keys);
}

void EvalConfig::Declare(SettingTable& keys) {
  keys.AddMutable(
      "measure", &measure,
      "Measure of an evaluation. accuracy generates responses and grades them. kl computes the "
      "truncated reverse KL to the teacher on given responses. none turns evaluations off.");
  keys.AddMutable("mode", &mode,
                  "Whether training waits for its evaluations. With blocking, it waits. With "
                  "beside, evaluations measure a copy of the weights while training continues, and "
                  "give way to rollouts (docs/evaluation.md). `taopd-trainer eval` does not train "
                  "and ignores this setting.");
  keys.AddMutable("kv_cache_gb", &kv_cache_gb,
                  "Maximum size in GiB of the KV cache of evaluations with mode beside. Blocking "
                  "evaluations use the KV cache of the rollouts.",
                  MoreThan(0.0));
  keys.AddMutable("system_prompt", &system_prompt,
                  "System message that is added to problems without one.");
  keys.AddMutable("prompt_template", &prompt_template,
                  "Template of a problem, with the values of data.prompt_template. ta_opd_eval is "
                  "the paper's evaluation prompt.");
  keys.AddMutable("n", &n, "Number of responses per problem (Avg@n).", AtLeast<int64_t>(1));
  keys.AddMutable("n_by_source", &n_by_source,
                  "Number of responses per problem of some sources, each as SOURCE=N. The paper "
                  "samples MMLU-Pro once.");
  keys.AddMutable("temperature", &temperature, "Sampling temperature. 0 means greedy.",
                  AtLeast(0.0));
  keys.AddMutable("top_p", &top_p,
                  "Sample from the most probable tokens whose probabilities sum to this number "
                  "(nucleus sampling). 1 turns it off.",
                  Fraction());
  keys.AddMutable("max_response_length", &max_response_length,
                  "Maximum number of tokens to generate per response.", AtLeast<int64_t>(1));
  keys.AddMutable("num_prompts", &num_prompts,
                  "Number of problems to use, from the first one on. 0 means all.",
                  AtLeast<int64_t>(0));
  keys.AddMutable("grader", &grader,
                  "Grader of the responses. It is one of `taopd-trainer grade --list`, or the URL "
                  "of a server whose rewards above 0.5 mean right (docs/rewards.md).",
                  CheckEvalGrader);
  keys.AddMutable(
      "answer_pattern", &answer_pattern,
      "RE2 expression whose first group is the answer in a response, for the graders exact and "
      "numeric. Its first match counts. If it is empty, the whole response is the answer.");
  keys.AddMutable("require_stop", &require_stop,
                  "Count a response that is cut at max_response_length as wrong.");
  keys.AddMutable(
      "kl_top_k", &kl_top_k,
      "Number of teacher tokens per position if eval.measure is kl. 0 means teacher.top_k.",
      AtLeast<int64_t>(0));
  keys.AddMutable("num_samples", &num_samples,
                  "Number of responses per evaluation that are written to samples.jsonl.",
                  AtLeast<int64_t>(0));
}

void DistConfig::Declare(SettingTable& keys) {
  keys.AddMutable("gradients", &gradients,
                  "Gradients that a rank keeps. With whole, it keeps sums for all parameters, "
                  "which are exchanged once per mini-batch. With sharded, it keeps sums for its "
                  "slice of the parameters, and gradients are exchanged for every micro-batch. "
                  "auto means sharded only if the memory plan has no room for whole.");
  keys.Add("deterministic", &deterministic,
           "Cut each mini-batch into dist.shares parts and add their gradients in a fixed order. "
           "The weights then do not depend on the number of ranks, bit for bit, if "
           "trainer.num_threads is the same.");
  keys.Add("shares", &shares,
           "Number of parts into which dist.deterministic cuts a mini-batch. Each rank takes 1, 2, "
           "4, ... of them.",
           AtLeast<int64_t>(1));
  keys.AddMutable(
      "interface", &interface,
      "Network interface, or address of this machine, on which the ranks connect to each other. If "
      "it is empty, it is the address from which this machine reaches the master.");
  keys.AddMutable("collective_timeout_s", &collective_timeout_s,
                  "Time limit in seconds for which a rank waits in a collective operation for "
                  "ranks that are alive but have not joined it.",
                  MoreThan(0.0));
  keys.AddMutable("heartbeat_timeout_s", &heartbeat_timeout_s,
                  "All ranks end if one of them sends no heartbeat for this many seconds.",
                  AtLeast(1.0));
}

void TrainConfig::Declare(SettingTable& keys) {
  keys.AddSection("run", "The run itself.", run);
  keys.AddSection("student", "The model that learns.", student);
  keys.AddSection("teacher", "The model that scores.", teacher);
  keys.AddList("teachers", &teachers,
               "Several teachers, instead of the one of teacher.endpoints: [{name: math, "
               "endpoints: [\"grpc://a:50051\"], sources: [gsm8k]}, {name: rest, endpoints: "
               "[\"grpc://b:50051\"]}].")
      .DecidesScores();
  keys.AddSection("data", "Prompts.", data);
  keys.AddSection("rollout", "Generation by the student.", rollout);
  keys.AddSection("objective",
                  "The loss of a position, and how the losses of positions are combined.",
                  objective);
  keys.AddSection("reward",
                  "Rewards of the responses, which add the term policy_gradient to the loss; see "
                  "docs/rewards.md.",
                  reward);
  keys.AddSection("optimizer", "AdamW and its schedule.", optimizer);
  keys.AddSection("trainer", "Steps, batches, evaluation, checkpoints, ports.", trainer);
  keys.AddSection("eval", "Held-out evaluation. `taopd-trainer eval` reads the same section.",
                  eval);
  keys.AddSection("guard", "Guards against collapse; see docs/run-control.md.", guard);
  keys.AddSection("dist", "Several ranks; see docs/scaling.md.", dist);
}

}  // namespace taopd
