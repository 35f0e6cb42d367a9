#include "trainer/commands/train/plan/evaluation_lines.h"

#include <algorithm>
#include <limits>

#include "common/engine/model_plan.h"
#include "common/memory/engine_plan.h"
#include "trainer/commands/configured_parts.h"

namespace taopd {
namespace {

// The engine whose steps take the memory of an evaluation.
EngineOptions EngineOf(const TrainConfig& config) {
  EngineOptions options = EvaluationEngineOptions(config);
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
  input.budget.limit_bytes = std::numeric_limits<int64_t>::max();
  input.weights_are_parameters = true;
  const auto plan = PlanEngine(input);
  if (!plan.ok()) return {};  // the engine of the rollouts has the same problem
  std::vector<MemoryLine> lines;
  const auto add = [&](MemoryItem item, const MemoryLine& from, const std::string& note) {
    for (MemoryLine& line : lines) {
      if (line.item != item || line.kind != from.kind || line.device != from.device) continue;
      line.bytes += from.bytes;
      return;
    }
    lines.push_back({item, from.device, from.kind, from.bytes, note});
  };
  for (const MemoryLine& line : plan->lines) {
    switch (line.item) {
      case MemoryItem::kRuntime:
        break;
      case MemoryItem::kKvPool:
      case MemoryItem::kActivations:
      case MemoryItem::kHeadWorkspace:
        add(MemoryItem::kEvaluationEngine, line, "of evaluations beside training");
        break;
      default:
        add(MemoryItem::kEvaluationWeights, line,
            "the copy that evaluations beside training measure");
    }
  }
  return lines;
}

}  // namespace taopd
