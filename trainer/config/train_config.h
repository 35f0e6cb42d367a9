// The configuration of `taopd-trainer train` and `eval`. Defaults are the paper's (experimental
// set-up and its appendix's table of hyperparameters); names are those that verl's users know.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/settings.h"
#include "common/model/config/recompute.h"
#include "taopd/objective/objective.h"
#include "trainer/config/dist_config.h"
#include "trainer/config/guard_config.h"
#include "trainer/config/lora_settings.h"
#include "trainer/config/reward_config.h"
#include "trainer/config/rollout_endpoints_config.h"
#include "trainer/config/run_config.h"
#include "trainer/config/teacher_config.h"
#include "trainer/data/teacher_prompt.h"
#include "trainer/data/truncation.h"
#include "trainer/grading/grader.h"

namespace taopd {

// The prompts that the chat template renders.
enum class ChatTemplateUse { kAuto, kAlways, kNever };
inline SettingWords<ChatTemplateUse> WordsOf(ChatTemplateUse) {
  return {{ChatTemplateUse::kAuto, "auto"},
          {ChatTemplateUse::kAlways, "always"},
          {ChatTemplateUse::kNever, "never"}};
}
// The model whose top-k tokens are compared one by one.
enum class SupportChoice { kTeacher, kStudent, kUnion };
inline SettingWords<SupportChoice> WordsOf(SupportChoice) {
  return {{SupportChoice::kTeacher, "teacher"},
          {SupportChoice::kStudent, "student"},
          {SupportChoice::kUnion, "union"}};
}
// The way in which the losses of positions add up to that of a mini-batch
// (trainer/step/loss/aggregation.h). The names are verl's.
enum class Aggregation { kTokenMean, kSeqMeanTokenMean, kSeqMeanTokenSum };
inline SettingWords<Aggregation> WordsOf(Aggregation) {
  return {{Aggregation::kTokenMean, "token-mean"},
          {Aggregation::kSeqMeanTokenMean, "seq-mean-token-mean"},
          {Aggregation::kSeqMeanTokenSum, "seq-mean-token-sum"}};
}
// The values that the backward pass computes again; kAuto: the memory plan chooses.
enum class RecomputeChoice { kAuto, kNone, kAttention, kFull };
inline SettingWords<RecomputeChoice> WordsOf(RecomputeChoice) {
  return {{RecomputeChoice::kAuto, "auto"},
          {RecomputeChoice::kNone, "none"},
          {RecomputeChoice::kAttention, "attention"},
          {RecomputeChoice::kFull, "full"}};
}
// Whether checkpoints are written beside the next step.
enum class AsyncSave { kAuto, kOn, kOff };
inline SettingWords<AsyncSave> WordsOf(AsyncSave) {
  return {{AsyncSave::kAuto, "auto"}, {AsyncSave::kOn, "on"}, {AsyncSave::kOff, "off"}};
}
// The value of a metric that is the best.
enum class BestIs { kSmallest, kLargest };
inline SettingWords<BestIs> WordsOf(BestIs) {
  return {{BestIs::kSmallest, "smallest"}, {BestIs::kLargest, "largest"}};
}
// The measure of an evaluation.
enum class EvalMeasure { kAccuracy, kKl, kNone };
inline SettingWords<EvalMeasure> WordsOf(EvalMeasure) {
  return {
      {EvalMeasure::kAccuracy, "accuracy"}, {EvalMeasure::kKl, "kl"}, {EvalMeasure::kNone, "none"}};
}

// Whether the run waits for its evaluations, or trains on beside them.
enum class EvalMode { kBlocking, kBeside };
inline SettingWords<EvalMode> WordsOf(EvalMode) {
  return {{EvalMode::kBlocking, "blocking"}, {EvalMode::kBeside, "beside"}};
}

struct StudentConfig {
  std::string model;
  std::string tokenizer;
  std::string dtype = "auto";
  LoraSettings lora;
  void Visit(SettingVisitor& v) {
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
};

struct DataConfig : PromptConfig {
  std::vector<std::string> train;
  std::vector<double> train_weights;
  std::vector<std::string> val;
  std::string prompt_key = "prompt";
  std::string answer_key = "answer";
  std::string source_key = "data_source";
  std::string system_prompt;
  std::string prompt_template;
  ChatTemplateUse apply_chat_template = ChatTemplateUse::kAuto;
  int64_t train_batch_size = 72;
  int64_t max_prompt_length = 1024;
  int64_t max_response_length = 7168;
  bool filter_overlong_prompts = false;
  Truncation truncation = Truncation::kError;
  std::string teacher_prompt_key;
  std::string teacher_prompt_template;
  MissingTeacherPrompt teacher_prompt_missing = MissingTeacherPrompt::kError;
  int64_t max_teacher_prompt_length = 0;  // 0: max_prompt_length
  std::string response_key;
  double offpolicy_fraction = 0;

  // Returns the number of a step's prompts that are trained on their rows' own responses.
  int64_t NumOffPolicy() const;
  bool HasTeacherPrompt() const {
    return !teacher_prompt_key.empty() || !teacher_prompt_template.empty();
  }
  bool HasSibling() const { return RowTemplate(teacher_prompt_template).Has(kSibling); }
  int64_t MaxTeacherPromptLength() const {
    return max_teacher_prompt_length > 0 ? max_teacher_prompt_length : max_prompt_length;
  }
  // Returns the length of the longest prompt that is sent to the teacher.
  int64_t LongestSentPrompt() const;
  void VisitTeacherPrompt(SettingVisitor& v);
  void VisitOffPolicy(SettingVisitor& v);
  void Visit(SettingVisitor& v) {
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
    VisitTeacherPrompt(v);
    VisitOffPolicy(v);
  }
};

struct RolloutConfig : RolloutEndpointsConfig {
  int64_t n = 4;
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  bool mask_truncated = false;
  int64_t max_num_seqs = 256;
  std::optional<double> kv_cache_gb = 4.0;
  bool cuda_graphs = false;
  void Visit(SettingVisitor& v) {
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
};

struct ObjectiveTermConfig {
  std::string name;
  double weight = 1.0;
  void Visit(SettingVisitor& v);
};

struct ObjectiveConfig {
  std::string name;
  std::vector<ObjectiveTermConfig> terms;
  SupportChoice support = SupportChoice::kTeacher;
  int64_t student_top_k = 0;
  ObjectiveParameters parameters;
  Aggregation aggregation = Aggregation::kTokenMean;
  int64_t full_kl_rows = 0;
  double veto_rho_below = 0;
  void Visit(SettingVisitor& v);

  // Name or terms with their parameters, without the reward's term (TrainConfig::LossTerms).
  // REQUIRES: the settings passed CheckTrainConfig, or name a registered objective.
  ObjectiveTerms Terms() const;
  // Whether nothing but the reward is trained on.
  bool IsRewardAlone() const;
};

struct TrainerConfig : ProcessConfig {
  int64_t total_steps = 300;
  int64_t mini_batch_size = 36;
  std::optional<int64_t> micro_batch_tokens = kDefaultMicroBatchTokens;
  int64_t async_steps = 0;
  RecomputeChoice recompute = RecomputeChoice::kAuto;
  bool eval_at_start = true;
  int64_t eval_every = 50;
  int64_t save_every = 50;
  double save_minutes = 15;
  double stop_grace_s = 240;
  double stall_timeout_s = 1800;
  AsyncSave async_save = AsyncSave::kAuto;
  int64_t keep_every = 0;
  std::string best_metric;
  BestIs best_is = BestIs::kSmallest;
  int64_t early_stop_evaluations = 0;
  double max_wall_time_s = 0;
  int64_t max_nonfinite_steps = 5;
  int64_t max_bad_batches = 4;
  PlanPolicy memory_plan = PlanPolicy::kRefuse;
  int64_t trace_steps = 0;
  int64_t rollout_dumps = 0;
  std::string cpu_memory_limit = "0";  // a size; 0 means a share of the available memory
  double peak_flops = 0;
  void Visit(SettingVisitor& v);

  // A larger file of rollouts is renamed (rollout_dumps).
  static constexpr int64_t kMaxRolloutLogBytes = int64_t{64} << 20;
  // Each step of this keeps the rollouts and scores of one more step in memory and in checkpoints,
  // and trains on older responses. Peers advise at most 8.
  static constexpr int64_t kMaxAsyncSteps = 8;
  // The value of auto before the memory plan has chosen.
  static constexpr int64_t kDefaultMicroBatchTokens = 16384;
  int64_t MicroBatchTokens() const { return micro_batch_tokens.value_or(kDefaultMicroBatchTokens); }
};

// With auto, the memory plan chooses; without a plan everything is kept.
Recompute RecomputeOf(const TrainerConfig& config);

// Accepts the name of a grader, or a URL that begins with http:// or https://.
absl::Status CheckEvalGrader(const std::string& grader);

struct EvalConfig {
  EvalMeasure measure = EvalMeasure::kAccuracy;
  EvalMode mode = EvalMode::kBlocking;
  double kv_cache_gb = 1.0;
  std::string system_prompt;
  std::string prompt_template;
  int64_t n = 8;
  std::vector<std::string> n_by_source = {"mmlu_pro=1"};
  double temperature = 0.7;
  double top_p = 0.95;
  int64_t max_response_length = 8192;
  int64_t num_prompts = 0;
  std::string grader = "auto";
  std::string answer_pattern;
  bool require_stop = true;
  int64_t kl_top_k = 0;
  int64_t num_samples = 8;

  // Whether `grader` is the URL of a server (trainer/eval/response_judge.h).
  bool IsJudgedByServer() const { return grader.find("://") != std::string::npos; }
  void Visit(SettingVisitor& v) {
    v.Setting("measure", &measure,
              "accuracy: generate and grade; kl: truncated reverse KL to the teacher on given "
              "responses; none.")
        .MayChange();
    v.Setting("mode", &mode,
              "blocking: training waits for its evaluations; beside: they measure a copy of the "
              "weights while training goes on, and give way to rollouts (docs/run-control.md). "
              "`taopd-trainer eval` trains nothing and ignores it.")
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
    v.Setting("num_prompts", &num_prompts,
              "Use only this many problems, from the first on; 0 = all.", AtLeast<int64_t>(0))
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
    v.Setting("kl_top_k", &kl_top_k,
              "Teacher tokens per position for measure kl; 0 = teacher.top_k.", AtLeast<int64_t>(0))
        .MayChange();
    v.Setting("num_samples", &num_samples, "Responses written to samples.jsonl per evaluation.",
              AtLeast<int64_t>(0))
        .MayChange();
  }
};

struct TrainConfig {
  RunConfig run;
  StudentConfig student;
  TeacherConfig teacher;
  std::vector<TeacherEntryConfig> teachers;
  DataConfig data;
  RolloutConfig rollout;
  ObjectiveConfig objective;
  RewardConfig reward;
  OptimizerConfig optimizer;
  TrainerConfig trainer;
  EvalConfig eval;
  GuardConfig guard;
  DistConfig dist;

  void Visit(SettingVisitor& v) {
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

  // The terms of the objective and of the reward. REQUIRES: as ObjectiveConfig::Terms.
  ObjectiveTerms LossTerms() const;
};

// Checks each setting by itself and in combination (mini_batch_size must divide train_batch_size,
// ...). Without objective.terms, an empty objective.name becomes ta_opd.
absl::Status CheckTrainConfig(TrainConfig& config);

}  // namespace taopd
