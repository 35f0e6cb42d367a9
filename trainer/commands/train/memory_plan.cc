#include "trainer/commands/train/memory_plan.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

#include "common/base/memory.h"
#include "common/engine/model_plan.h"
#include "common/model/decoder.h"
#include "trainer/commands/configured_parts.h"
#include "trainer/step/support.h"
#include "trainer/student/student_tokenizer.h"

namespace taopd {
namespace {

absl::StatusOr<ModelConfig> StudentConfigOf(const TrainConfig& config,
                                            const std::string& model_dir) {
  TAOPD_ASSIGN_OR_RETURN(ModelConfig model, LoadModelConfig(model_dir));
  // A checkpoint has taken the other tokenizer over already.
  if (!config.student.tokenizer.empty() && model_dir == config.student.model) {
    TAOPD_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(config.student.tokenizer));
    TAOPD_ASSIGN_OR_RETURN(const VocabularyChange change,
                           ReadVocabularyChange(config.student.tokenizer, *tokenizer));
    TAOPD_RETURN_IF_ERROR(ChangeVocabulary(change, &model));
  }
  return model;
}

}  // namespace

absl::StatusOr<MemoryBudget> BudgetOf(const TrainConfig& config) {
  TAOPD_ASSIGN_OR_RETURN(const at::Device device, ParseDevice(config.trainer.device));
  if (device.is_cpu()) return CpuBudget(MemoryLimits());
  const auto [free_bytes, total_bytes] =
      c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index());
  return CudaBudget(MemoryLimits(), device.str(), static_cast<int64_t>(total_bytes),
                    static_cast<int64_t>(free_bytes));
}

absl::StatusOr<EnginePlan> PlanRun(const TrainConfig& config, const std::string& model_dir,
                                   const MemoryBudget& budget, EnginePlan* refused) {
  TAOPD_ASSIGN_OR_RETURN(const ModelConfig model, StudentConfigOf(config, model_dir));
  const std::string stored = model.dtype.empty() ? "float32" : model.dtype;
  TAOPD_ASSIGN_OR_RETURN(
      const WeightDtype dtype,
      ParseWeightDtype(config.student.dtype == "auto" ? stored : config.student.dtype));
  EngineOptions options = RolloutEngineOptions(config, model.vocab_size);
  // Evaluations of the accuracy may have more sequences than a step has; their number is not known
  // before the data is read.
  const int64_t num_rollouts = config.data.train_batch_size * config.rollout.n;
  if (config.eval.measure != "accuracy") {
    options.max_num_seqs = std::min(options.max_num_seqs, num_rollouts);
  }
  TrainingPlanInput input;
  input.engine = PlanInputOf(options, model, dtype, budget);
  const int64_t longest = config.data.max_prompt_length + config.data.max_response_length;
  const int64_t sequences = config.trainer.mini_batch_size * config.rollout.n;
  const int64_t in_micro_batch =
      std::clamp<int64_t>(config.trainer.micro_batch_tokens / longest, 1, sequences);
  input.micro_batch_tokens = in_micro_batch * longest;
  // Shorter sequences fill a micro-batch up to its limit.
  if (sequences > in_micro_batch) {
    input.micro_batch_tokens = std::max(
        input.micro_batch_tokens, std::min(config.trainer.micro_batch_tokens, sequences * longest));
  }
  input.micro_batch_rows =
      std::min(input.micro_batch_tokens, sequences * config.data.max_response_length);
  input.overlaps = config.data.train_batch_size > config.trainer.mini_batch_size;
  input.accumulates = sequences > in_micro_batch;
  input.head_workspace_bytes = BytesOfMib(config.trainer.head_workspace_mb);
  const SupportOptions support = MakeSupportOptions(config, model.vocab_size);
  input.support_size = support.kind == SupportKind::kFullVocabulary
                           ? model.vocab_size
                           : support.teacher_top_k + support.student_top_k;
  input.step_rows = num_rollouts * config.data.max_response_length;
  return PlanTraining(std::move(input), refused);
}

}  // namespace taopd
