#include "trainer/commands/configured_parts.h"

#include <algorithm>

#include "common/base/memory.h"
#include "common/engine/torch_engine.h"
#include "trainer/step/support.h"

namespace taopd {

absl::StatusOr<std::unique_ptr<TeacherClient>> MakeTeacherClient(const TeacherConfig& config) {
  GrpcTeacherOptions options;
  options.endpoints = config.endpoints;
  options.request_timeout = absl::Seconds(config.timeout_s);
  options.outage_budget = absl::Seconds(config.outage_budget_s);
  options.max_in_flight_per_endpoint = config.max_in_flight;
  return MakeGrpcTeacherClient(options);
}

EngineOptions RolloutEngineOptions(const TrainConfig& config, int64_t vocab_size) {
  const bool generates = config.eval.measure == "accuracy" && !config.data.val.empty();
  const int64_t longest_response =
      std::max(config.data.max_response_length, generates ? config.eval.max_response_length : 0);
  EngineOptions options;
  options.max_model_len = config.data.max_prompt_length + longest_response;
  options.max_num_seqs = config.rollout.max_num_seqs;
  options.max_logprobs = MakeSupportOptions(config, vocab_size).student_top_k;
  options.kv_cache_bytes = BytesOfGib(config.rollout.kv_cache_gb);
  options.head_workspace_bytes = BytesOfMib(config.trainer.head_workspace_mb);
  // The size of a step and of an evaluation is the configuration's choice.
  options.max_queued_tokens = INT64_MAX / 2;
  options.max_queued_requests = INT64_MAX / 2;
  return options;
}

absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeRolloutEngine(
    const TrainConfig& config, std::shared_ptr<Decoder> student) {
  const EngineOptions options = RolloutEngineOptions(config, student->config().vocab_size);
  if (options.max_model_len > student->config().max_position_embeddings) {
    return InvalidArgument(
        "data.max_prompt_length + the longest response (data.max_response_length, "
        "eval.max_response_length) = ",
        options.max_model_len, " exceeds the student's max_position_embeddings ",
        student->config().max_position_embeddings);
  }
  return MakeTorchEngine(std::move(student), options);
}

HeadOptions MakeHeadOptions(const TrainConfig& config) {
  HeadOptions options;
  options.objective = config.objective.Terms();
  options.temperature = config.rollout.temperature;
  options.workspace_bytes = BytesOfMib(config.trainer.head_workspace_mb);
  return options;
}

absl::StatusOr<PromptModel> PromptModelOf(const DataConfig& data, const Student& student) {
  return MakePromptModel(data, student.tokenizer_dir, student.tokenizer.get(),
                         student.decoder->config().vocab_size);
}

}  // namespace taopd
