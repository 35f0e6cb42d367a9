#include "trainer/setup/engine_options.h"

#include <algorithm>

#include "common/base/memory.h"
#include "common/engine/torch_engine.h"
#include "common/model/weights/weights.h"
#include "trainer/eval/accuracy.h"
#include "trainer/step/rollouts/rollout_requests.h"
#include "trainer/step/support.h"

namespace taopd {
namespace {

bool GeneratesInEvaluations(const TrainConfig& config) {
  return config.eval.measure == EvalMeasure::kAccuracy && !config.data.val.empty();
}

// Returns the options that all engines of a trainer share. Their queues have no limit: the
// configuration alone limits the size of a step and of an evaluation.
EngineOptions MakeTrainerEngineOptions(const TrainConfig& config) {
  EngineOptions options;
  options.head_workspace_bytes = BytesOfMib(config.trainer.head_workspace_mb);
  options.max_queued_tokens = options.max_queued_requests = INT64_MAX / 2;
  options.kernels = config.trainer.kernels;
  return options;
}

}  // namespace

absl::Status CheckSettingsForCpu(const TrainConfig& config) {
  if (config.optimizer.offload) return OffloadOnCpuError();
  if (config.rollout.cuda_graphs == CudaGraphUse::kAlways) {
    return InvalidArgument(
        "rollout.cuda_graphs = true: the device is a CPU, which has none; set it to auto");
  }
  return absl::OkStatus();
}

int64_t NumRollouts(const TrainConfig& config, int64_t num_ranks) {
  return (config.data.train_batch_size + num_ranks - 1) / num_ranks * config.rollout.n;
}

int64_t MaxEvaluationSequences(const TrainConfig& config, int64_t num_problems) {
  const auto n_by_source = ParseResponsesBySource(config.eval.n_by_source);
  if (num_problems == 0 || !n_by_source.ok()) return config.rollout.max_num_seqs;
  int64_t n = config.eval.n;
  for (const auto& [source, other_n] : *n_by_source) n = std::max(n, other_n);
  // In double, because the product of two user-supplied numbers may overflow.
  const double responses = static_cast<double>(num_problems) * static_cast<double>(n);
  if (responses >= static_cast<double>(config.rollout.max_num_seqs))
    return config.rollout.max_num_seqs;
  return static_cast<int64_t>(responses);
}

EngineOptions MakeRolloutEngineOptions(const TrainConfig& config, int64_t vocab_size,
                                       int64_t num_ranks) {
  EngineOptions options = MakeTrainerEngineOptions(config);
  int64_t longest_response = config.data.max_response_length;
  int64_t num_sequences = NumRollouts(config, num_ranks);
  if (GeneratesInEvaluations(config) && config.eval.mode == EvalMode::kBlocking) {
    longest_response = std::max(longest_response, config.eval.max_response_length);
    num_sequences =
        std::max(num_sequences, MaxEvaluationSequences(config, config.eval.num_prompts));
  }
  options.max_model_len = config.data.max_prompt_length + longest_response;
  options.max_num_seqs = std::min(config.rollout.max_num_seqs, num_sequences);
  options.max_logprobs = MakeSupportOptions(config, vocab_size).student_top_k;
  // auto means the default if no memory plan has chosen.
  options.kv_cache_bytes =
      BytesOfGib(config.rollout.kv_cache_gb.value_or(*RolloutConfig().kv_cache_gb));
  options.cuda_graphs.use = config.rollout.cuda_graphs;
  return options;
}

EngineOptions MakeEvaluationEngineOptions(const TrainConfig& config) {
  EngineOptions options = MakeTrainerEngineOptions(config);
  options.max_model_len = config.data.max_prompt_length + config.eval.max_response_length;
  options.max_num_seqs = MaxEvaluationSequences(config, config.eval.num_prompts);
  options.max_logprobs = 0;
  options.kv_cache_bytes = BytesOfGib(config.eval.kv_cache_gb);
  return options;
}

absl::Status CheckLengthFits(const TrainConfig& config, const ModelConfig& student) {
  int64_t longest = MakeRolloutEngineOptions(config, student.vocab_size).max_model_len;
  if (GeneratesInEvaluations(config))
    longest = std::max(longest, MakeEvaluationEngineOptions(config).max_model_len);
  if (longest <= student.max_position_embeddings) return absl::OkStatus();
  return InvalidArgument(
      "data.max_prompt_length + the longest response (data.max_response_length, "
      "eval.max_response_length) = ",
      longest, " exceeds the student's max_position_embeddings ", student.max_position_embeddings);
}

absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeRolloutEngine(
    const TrainConfig& config, std::shared_ptr<Decoder> student) {
  TAOPD_RETURN_IF_ERROR(CheckLengthFits(config, student->config()));
  const EngineOptions options = MakeRolloutEngineOptions(config, student->config().vocab_size);
  return Annotate(MakeTorchEngine(std::move(student), options), "rollout");
}

RolloutNeeds RolloutNeedsOf(const TrainConfig& config, const Student& student) {
  const ModelConfig& model = student.decoder->config();
  return {.vocab_size = model.vocab_size,
          .max_model_len = config.data.max_prompt_length + config.data.max_response_length,
          .dtype = ConfigDtype(student.decoder->dtype()),
          .base_revision = student.base_revision,
          .has_adapters = student.decoder->lora() != nullptr,
          .has_tied_head = model.tie_word_embeddings,
          .eos_token_ids = model.eos_token_ids,
          .sampling = RolloutSampling(config)};
}

absl::StatusOr<RolloutWorkerOptions> MakeWorkerOptions(const TrainConfig& config) {
  const RolloutConfig& rollout = config.rollout;
  RolloutWorkerOptions options;
  TAOPD_RETURN_IF_ERROR(rollout.ReadCredentials("rollout", &options));
  options.timeout = absl::Seconds(rollout.timeout_s);
  options.max_in_flight = rollout.max_in_flight;
  options.transfer = rollout.weight_transfer;
  if (const auto device = ParseDevice(config.trainer.device); device.ok() && device->is_cuda())
    options.cuda_device = std::max<int>(0, device->index());
  options.on_update = rollout.on_update;
  return options;
}

HeadOptions MakeHeadOptions(const TrainConfig& config) {
  return {.objective = config.LossTerms(),
          .temperature = config.rollout.temperature,
          .workspace_bytes = BytesOfMib(config.trainer.head_workspace_mb)};
}

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
  EngineOptions& engine = options.engine = MakeTrainerEngineOptions(config);
  // Given responses may be longer than generated ones: up to the model's positions.
  if (!measures_kl)
    engine.max_model_len = config.data.LongestSentPrompt() + config.data.max_response_length;
  const int64_t top_k =
      std::max(config.teacher.top_k, measures_kl ? config.eval.kl_top_k : int64_t{0});
  engine.max_logprobs = static_cast<int32_t>(top_k);
  engine.max_candidates = support.student_top_k;
  engine.kv_cache_bytes = 0;
  return options;
}

}  // namespace taopd
