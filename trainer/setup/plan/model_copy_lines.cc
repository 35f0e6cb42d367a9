// The memory of further engines of the trainer's process.
#include <limits>
#include <string>
#include <utility>

#include "common/engine/model_plan.h"
#include "trainer/setup/engine_options.h"
#include "trainer/setup/plan/memory_plan.h"

namespace taopd {
namespace {

bool IsOfBase(MemoryItem item) {
  using enum MemoryItem;
  return item == kEmbedding || item == kHead || item == kNormsAndBiases || item == kProjections ||
         item == kWeightFiles;
}

bool IsOfSteps(MemoryItem item) {
  using enum MemoryItem;
  return item == kActivations || item == kHeadWorkspace || item == kKvPool;
}

bool IsPacked(MemoryItem item) {
  return item == MemoryItem::kPackedProjections || item == MemoryItem::kPackedHead;
}

// The items and notes of the plan's lines for a copy: its weights with their packed copies, and the
// memory of an engine's step.
struct CopyLines {
  MemoryItem weights, engine;
  std::string weights_note, engine_note;
  bool is_packed = true;  // false if nothing is computed with the copy
};

// If input.weights_are_parameters, the copy has parameters of its own, as a Decoder of
// GenerationWeights has: with student.lora only the adapters, since the base is shared with the
// student. Returns no lines if the engine cannot be planned: the plan of the rollouts' engine then
// names the problem.
std::vector<MemoryLine> LinesOfCopy(const TrainConfig& config, EnginePlanInput input,
                                    const CopyLines& names) {
  input.budget.limit_bytes = std::numeric_limits<int64_t>::max();
  const bool shares_base = input.weights_are_parameters && config.student.lora.is_on();
  const auto lora = config.student.lora.Counts(input.config);
  const auto plan = PlanEngine(input);
  if (!plan.ok() || !lora.ok()) return {};
  std::vector<MemoryLine> lines;
  if (shares_base) {
    const int64_t bytes = 4 * lora->adapters + SizeOf(input.dtype) * lora->saved();
    AddLine({names.weights, input.budget.device, MemoryKind::kHeld, bytes,
             "adapters of its own, with their merged copies"},
            &lines);
  }
  for (const MemoryLine& line : plan->lines) {
    if (line.item == MemoryItem::kRuntime || (shares_base && IsOfBase(line.item)) ||
        (!names.is_packed && IsPacked(line.item))) {
      continue;
    }
    const bool is_of_steps = IsOfSteps(line.item);
    AddLine({is_of_steps ? names.engine : names.weights, line.device, line.kind, line.bytes,
             is_of_steps ? names.engine_note : names.weights_note},
            &lines);
  }
  return lines;
}

std::vector<MemoryLine> SelfTeacherLines(const TrainConfig& config, const ModelConfig& model,
                                         DataType dtype, const MemoryBudget& budget) {
  if (!HasSelfTeacher(config.teacher, config.teachers)) return {};
  const SelfTeacherOptions options = MakeSelfTeacherOptions(config);
  EnginePlanInput input = PlanInputOf(options.engine, model, dtype, budget);
  input.weights_are_parameters = KeepsAverage(options.weights, options.refresh_every);
  if (const auto stored = ParseDtype("auto", model.dtype); stored.ok() && !model.dtype.empty())
    input.stored_dtype = *stored;
  std::vector<MemoryLine> lines = LinesOfCopy(
      config, std::move(input),
      {MemoryItem::kTeacherWeights, MemoryItem::kTeacherEngine,
       "the student's own, with their packed copies", "activations and logits of a scoring step"});
  if (options.weights == TeacherWeights::kLive) {
    std::erase_if(lines,
                  [](const MemoryLine& line) { return line.item == MemoryItem::kTeacherWeights; });
  }
  return lines;
}

// Returns the options of an engine whose steps take as much memory as an evaluation.
EngineOptions MakePlannedEngineOptions(const TrainConfig& config) {
  EngineOptions options = MakeEvaluationEngineOptions(config);
  if (!config.rollout.eval_endpoints.empty()) {  // nothing is computed here
    options.kv_cache_bytes = 0;
    options.max_num_seqs = options.max_num_batched_tokens = options.max_model_len = 1;
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

std::vector<MemoryLine> EvaluationLines(const TrainConfig& config, const ModelConfig& model,
                                        DataType dtype, const MemoryBudget& budget) {
  if (config.eval.mode != EvalMode::kBeside || config.eval.measure == EvalMeasure::kNone ||
      config.data.val.empty()) {
    return {};
  }
  EnginePlanInput input = PlanInputOf(MakePlannedEngineOptions(config), model, dtype, budget);
  input.weights_are_parameters = true;
  return LinesOfCopy(
      config, std::move(input),
      {MemoryItem::kEvaluationWeights, MemoryItem::kEvaluationEngine,
       "the copy that evaluations beside training measure", "of evaluations beside training",
       /*is_packed=*/config.rollout.eval_endpoints.empty()});
}

}  // namespace

std::vector<MemoryLine> ModelCopyLines(const TrainConfig& config, const ModelConfig& model,
                                       DataType dtype, const MemoryBudget& budget) {
  std::vector<MemoryLine> lines = SelfTeacherLines(config, model, dtype, budget);
  for (MemoryLine& line : EvaluationLines(config, model, dtype, budget))
    lines.push_back(std::move(line));
  return lines;
}

}  // namespace taopd
