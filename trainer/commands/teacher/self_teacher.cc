#include "trainer/commands/teacher/self_teacher.h"

#include <algorithm>
#include <limits>

#include "common/base/memory.h"
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

}  // namespace taopd
