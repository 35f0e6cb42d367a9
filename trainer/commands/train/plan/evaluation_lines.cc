#include "trainer/commands/train/plan/evaluation_lines.h"

#include <utility>

#include "common/engine/model_plan.h"
#include "trainer/commands/configured_parts.h"
#include "trainer/commands/train/plan/model_copy_lines.h"

namespace taopd {
namespace {

// The engine whose steps take the memory of an evaluation.
EngineOptions EngineOf(const TrainConfig& config) {
  EngineOptions options = EvaluationEngineOptions(config);
  if (!config.rollout.eval_endpoints.empty()) {  // nothing is computed here
    options.kv_cache_bytes = 0;
    options.max_num_seqs = options.max_num_batched_tokens = 1;
    return options;
  }
  if (config.eval.measure == EvalMeasure::kAccuracy) return options;
  // Nothing is generated, so eval.max_response_length limits nothing.
  options.max_model_len = config.data.max_prompt_length + config.data.max_response_length;
  options.kv_cache_bytes = 0;
  options.max_num_batched_tokens = config.trainer.MicroBatchTokens();
  const int64_t most_prompts = options.max_num_batched_tokens / options.max_model_len;
  if (config.eval.num_prompts > 0 && config.eval.num_prompts < most_prompts)
    options.max_num_batched_tokens = config.eval.num_prompts * options.max_model_len;
  return options;
}

}  // namespace

std::vector<MemoryLine> EvaluationLines(const TrainConfig& config, const ModelConfig& model,
                                        DataType dtype, const MemoryBudget& budget) {
  if (config.eval.mode != EvalMode::kBeside || config.eval.measure == EvalMeasure::kNone ||
      config.data.val.empty()) {
    return {};
  }
  EnginePlanInput input = PlanInputOf(EngineOf(config), model, dtype, budget);
  input.weights_are_parameters = true;
  return LinesOfModelCopy(
      config, std::move(input),
      {MemoryItem::kEvaluationWeights, MemoryItem::kEvaluationEngine,
       "the copy that evaluations beside training measure", "of evaluations beside training"});
}

}  // namespace taopd
