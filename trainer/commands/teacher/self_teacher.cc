#include "trainer/commands/teacher/self_teacher.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/memory.h"
#include "common/engine/model_plan.h"
#include "trainer/commands/train/plan/model_copy_lines.h"
#include "trainer/step/support.h"

namespace taopd {

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
  input.weights_are_parameters = KeepsAverage(options.weights, options.refresh_every);
  if (const auto stored = ParseDtype("auto", model.dtype); stored.ok() && !model.dtype.empty())
    input.stored_dtype = *stored;
  std::vector<MemoryLine> lines = LinesOfModelCopy(
      config, std::move(input),
      {MemoryItem::kTeacherWeights, MemoryItem::kTeacherEngine,
       "the student's own, with their packed copies", "activations and logits of a scoring step"});
  if (options.weights == TeacherWeights::kLive) {
    std::erase_if(lines,
                  [](const MemoryLine& line) { return line.item == MemoryItem::kTeacherWeights; });
  }
  return lines;
}

}  // namespace taopd
