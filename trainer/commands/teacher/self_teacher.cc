#include "trainer/commands/teacher/self_teacher.h"

#include <algorithm>
#include <limits>

#include "common/base/memory.h"
#include "common/engine/model_plan.h"
#include "common/memory/engine_plan.h"
#include "trainer/step/support.h"

namespace taopd {
namespace {

// Returns whether the teacher's line is of weights that it shares with a student that has adapters.
bool IsOfBase(MemoryItem item) {
  using enum MemoryItem;
  return item == kEmbedding || item == kHead || item == kNormsAndBiases || item == kProjections ||
         item == kWeightFiles;
}

}  // namespace

SelfTeacherOptions MakeSelfTeacherOptions(const TrainConfig& config) {
  SelfTeacherOptions options;
  options.weights = config.teacher.weights;
  options.ema = config.teacher.ema;
  options.refresh_every = config.teacher.refresh_every;
  options.model_dir = config.student.model;
  options.dtype = config.student.dtype;
  options.device = config.trainer.device;
  options.tokenizer_dir = config.student.tokenizer;
  const SupportOptions support = MakeSupportOptions(config, /*vocab_size=*/0);
  const bool measures_kl = config.eval.measure == EvalMeasure::kKl;
  EngineOptions& engine = options.engine;
  // Given responses may be longer than generated ones: up to the model's positions.
  if (!measures_kl)
    engine.max_model_len = config.data.LongestSentPrompt() + config.data.max_response_length;
  const int64_t top_k =
      std::max(config.teacher.top_k, measures_kl ? config.eval.kl_top_k : int64_t{0});
  engine.max_logprobs = static_cast<int32_t>(top_k);
  engine.max_candidates = support.student_top_k;
  engine.kv_cache_bytes = 0;
  engine.head_workspace_bytes = BytesOfMib(config.trainer.head_workspace_mb);
  // The configuration alone limits the size of a step.
  engine.max_queued_tokens = engine.max_queued_requests = std::numeric_limits<int64_t>::max() / 2;
  return options;
}

std::vector<MemoryLine> SelfTeacherLines(const TrainConfig& config, const ModelConfig& model,
                                         DataType dtype, const MemoryBudget& budget) {
  if (!HasSelfTeacher(config.teacher, config.teachers)) return {};
  const SelfTeacherOptions options = MakeSelfTeacherOptions(config);
  EnginePlanInput input = PlanInputOf(options.engine, model, dtype, budget);
  input.budget.limit_bytes = std::numeric_limits<int64_t>::max();
  input.weights_are_parameters = KeepsAverage(options.weights, options.refresh_every);
  if (const auto stored = ParseDtype("auto", model.dtype); stored.ok() && !model.dtype.empty())
    input.stored_dtype = *stored;
  const auto plan = PlanEngine(input);
  if (!plan.ok()) return {};  // the engine of the rollouts has the same problem
  const bool shares_base = input.weights_are_parameters && config.student.lora.is_on();
  std::vector<MemoryLine> lines;
  const auto add = [&](MemoryItem item, const MemoryLine& from, const std::string& note) {
    for (MemoryLine& line : lines) {
      if (line.item != item || line.kind != from.kind || line.device != from.device) continue;
      line.bytes += from.bytes;
      return;
    }
    lines.push_back({item, from.device, from.kind, from.bytes, note});
  };
  if (shares_base) {
    const auto adapters = config.student.lora.NumParameters(model);
    if (!adapters.ok()) return {};  // the plan's own lines name the module
    add(MemoryItem::kTeacherWeights,
        {MemoryItem::kAdapters, budget.device, MemoryKind::kHeld, 4 * *adapters, ""},
        "adapters of its own, with their merged copies");
  }
  for (const MemoryLine& line : plan->lines) {
    if (line.item == MemoryItem::kRuntime || (shares_base && IsOfBase(line.item))) continue;
    if (line.item == MemoryItem::kActivations || line.item == MemoryItem::kHeadWorkspace) {
      add(MemoryItem::kTeacherEngine, line, "activations and logits of a scoring step");
    } else if (options.weights != TeacherWeights::kLive) {
      add(MemoryItem::kTeacherWeights, line, "the student's own, with their packed copies");
    }
  }
  return lines;
}

}  // namespace taopd
