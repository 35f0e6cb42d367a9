// The configuration of `taopd-trainer train` and `eval`. Defaults are the paper's (experimental
// set-up and its appendix's table of hyperparameters); names are those that verl's users know.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/settings.h"
#include "common/memory/cuda_graph_options.h"
#include "common/model/config/recompute.h"
#include "taopd/objective/objective.h"
#include "trainer/config/guard_config.h"
#include "trainer/config/reward_config.h"
#include "trainer/config/rollout_endpoints_config.h"
#include "trainer/config/run_config.h"
#include "trainer/config/teacher_config.h"
#include "trainer/data/teacher_prompt.h"
#include "trainer/data/truncation.h"

namespace taopd {

// The prompts that the chat template renders.
enum class ChatTemplateUse { kAuto, kAlways, kNever };
inline EnumNames<ChatTemplateUse> NamesOf(ChatTemplateUse) {
  return {{ChatTemplateUse::kAuto, "auto"},
          {ChatTemplateUse::kAlways, "always"},
          {ChatTemplateUse::kNever, "never"}};
}
// The model whose top-k tokens are compared one by one.
enum class SupportChoice { kTeacher, kStudent, kUnion };
inline EnumNames<SupportChoice> NamesOf(SupportChoice) {
  return {{SupportChoice::kTeacher, "teacher"},
          {SupportChoice::kStudent, "student"},
          {SupportChoice::kUnion, "union"}};
}
// The way in which the losses of positions add up to that of a mini-batch
// (trainer/step/loss/micro_batches.h). The names are verl's.
enum class Aggregation { kTokenMean, kSeqMeanTokenMean, kSeqMeanTokenSum };
inline EnumNames<Aggregation> NamesOf(Aggregation) {
  return {{Aggregation::kTokenMean, "token-mean"},
          {Aggregation::kSeqMeanTokenMean, "seq-mean-token-mean"},
          {Aggregation::kSeqMeanTokenSum, "seq-mean-token-sum"}};
}
// The values that the backward pass computes again; kAuto: the memory plan chooses.
enum class RecomputeChoice { kAuto, kNone, kAttention, kFull };
inline EnumNames<RecomputeChoice> NamesOf(RecomputeChoice) {
  return {{RecomputeChoice::kAuto, "auto"},
          {RecomputeChoice::kNone, "none"},
          {RecomputeChoice::kAttention, "attention"},
          {RecomputeChoice::kFull, "full"}};
}
// Whether checkpoints are written while the next step runs.
enum class AsyncSave { kAuto, kOn, kOff };
inline EnumNames<AsyncSave> NamesOf(AsyncSave) {
  return {{AsyncSave::kAuto, "auto"}, {AsyncSave::kOn, "on"}, {AsyncSave::kOff, "off"}};
}
// Whether the smallest or the largest value of a metric is the best.
enum class BestIs { kSmallest, kLargest };
inline EnumNames<BestIs> NamesOf(BestIs) {
  return {{BestIs::kSmallest, "smallest"}, {BestIs::kLargest, "largest"}};
}
// The measure of an evaluation.
enum class EvalMeasure { kAccuracy, kKl, kNone };
inline EnumNames<EvalMeasure> NamesOf(EvalMeasure) {
  return {
      {EvalMeasure::kAccuracy, "accuracy"}, {EvalMeasure::kKl, "kl"}, {EvalMeasure::kNone, "none"}};
}

// Whether the run waits for its evaluations, or trains while they run.
enum class EvalMode { kBlocking, kBeside };
inline EnumNames<EvalMode> NamesOf(EvalMode) {
  return {{EvalMode::kBlocking, "blocking"}, {EvalMode::kBeside, "beside"}};
}

struct StudentConfig {
  std::string model;
  std::string tokenizer;
  std::string dtype = "auto";
  LoraSettings lora;
  void Declare(SettingTable& keys);
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
  void Declare(SettingTable& keys);
};

struct RolloutConfig : RolloutEndpointsConfig {
  int64_t n = 4;
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  bool mask_truncated = false;
  int64_t max_num_seqs = 256;
  std::optional<double> kv_cache_gb = 4.0;
  CudaGraphUse cuda_graphs = CudaGraphUse::kAuto;
  void Declare(SettingTable& keys);
};

struct ObjectiveTermConfig {
  std::string name;
  double weight = 1.0;
  void Declare(SettingTable& keys);
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
  void Declare(SettingTable& keys);

  // Name or terms with their parameters, without the reward's term (TrainConfig::LossTerms).
  // REQUIRES: the settings passed CheckTrainConfig, or name a registered objective.
  ObjectiveTerms Terms() const;
  // Returns whether the reward is the only term of the loss.
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
  void Declare(SettingTable& keys);

  // A larger file of rollouts is renamed (rollout_dumps).
  static constexpr int64_t kMaxRolloutLogBytes = int64_t{64} << 20;
  // Each step of this keeps the rollouts and scores of one more step in memory and in checkpoints,
  // and trains on older responses. Other projects advise at most 8.
  static constexpr int64_t kMaxAsyncSteps = 8;
  // The value of auto before the memory plan has chosen.
  static constexpr int64_t kDefaultMicroBatchTokens = 16384;
  int64_t MicroBatchTokens() const { return micro_batch_tokens.value_or(kDefaultMicroBatchTokens); }
};

// Returns the choice for the backward pass. auto, which a memory plan replaces, means none.
Recompute RecomputeOf(const TrainerConfig& config);

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

  // Returns whether `grader` is the URL of a server (trainer/eval/response_judge.h).
  bool IsJudgedByServer() const { return grader.find("://") != std::string::npos; }
  void Declare(SettingTable& keys);
};

// The part of the gradients that a rank keeps.
enum class GradientSums { kAuto, kWhole, kSharded };
inline EnumNames<GradientSums> NamesOf(GradientSums) {
  return {{GradientSums::kAuto, "auto"},
          {GradientSums::kWhole, "whole"},
          {GradientSums::kSharded, "sharded"}};
}

// Several ranks (docs/scaling.md). With auto, the memory plan chooses the gradients; without a plan
// they are whole.
struct DistConfig {
  GradientSums gradients = GradientSums::kAuto;
  bool deterministic = false;
  int64_t shares = 4;
  std::string interface;
  double collective_timeout_s = 1800;
  double heartbeat_timeout_s = 20;
  bool ShardsGradients(int64_t num_ranks) const {
    return num_ranks > 1 && gradients == GradientSums::kSharded;
  }
  void Declare(SettingTable& keys);
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

  void Declare(SettingTable& keys);

  // The terms of the objective and of the reward. REQUIRES: as ObjectiveConfig::Terms.
  ObjectiveTerms LossTerms() const;
};

// Checks each setting by itself and in combination (mini_batch_size must divide train_batch_size,
// ...). Without objective.terms, an empty objective.name becomes ta_opd.
absl::Status CheckTrainConfig(TrainConfig& config);

}  // namespace taopd
