#include "trainer/commands/configured_parts.h"

#include <algorithm>

#include "common/base/memory.h"
#include "common/engine/torch_engine.h"
#include "common/io/file.h"
#include "common/model/weights/weights.h"
#include "trainer/eval/accuracy.h"
#include "trainer/step/rollouts/rollout_requests.h"
#include "trainer/step/support.h"
#include "trainer/teacher/cache/cached_teacher_client.h"
#include "trainer/teacher/engine_teacher_client.h"
#include "trainer/teacher/network_teacher_client.h"
#include "trainer/teacher/no_teacher_client.h"
#include "trainer/teacher/routing_teacher_client.h"

namespace taopd {

namespace {

TeacherClientOptions MakeClientOptions(const TrainConfig& config) {
  const TeacherConfig& teacher = config.teacher;
  TeacherClientOptions options;
  options.endpoints = teacher.endpoints;
  options.model = teacher.model;
  options.revision = teacher.revision;
  options.request_timeout = absl::Seconds(teacher.timeout_s);
  options.outage_budget = absl::Seconds(teacher.outage_budget_s);
  options.max_in_flight_per_endpoint = teacher.max_in_flight;
  if (teacher.hedge_after_s > 0) options.hedge_after = absl::Seconds(teacher.hedge_after_s);
  options.probe_top_k = teacher.top_k;
  if (config.eval.measure == EvalMeasure::kKl) {
    options.probe_top_k = std::max(options.probe_top_k, config.eval.kl_top_k);
  }
  return options;
}

// Makes a client of servers, and the cache in front of them.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeServerClient(
    const TeacherConfig& config, const TeacherClientOptions& options) {
  TAOPD_ASSIGN_OR_RETURN(auto client, MakeNetworkTeacherClient(options));
  if (config.cache_dir.empty()) return client;
  TAOPD_ASSIGN_OR_RETURN(auto cache,
                         Annotate(ScoreCache::Open(config.cache_dir, BytesOfGib(config.cache_gb)),
                                  "teacher.cache_dir"));
  if (config.cache_only) client.reset();
  return std::make_unique<CachedTeacherClient>(std::move(cache), options.endpoints,
                                               std::move(client), options.revision);
}

// Makes the client of one teacher. `self` is null if the command has no student.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeOneClient(TeacherKind kind,
                                                             const TeacherConfig& config,
                                                             const TeacherClientOptions& options,
                                                             SelfTeacher* self) {
  if (kind == TeacherKind::kServer) return MakeServerClient(config, options);
  if (kind == TeacherKind::kNone) return std::make_unique<NoTeacherClient>();
  if (self == nullptr)
    return InvalidArgument("kind self: this command has no student; it needs a server");
  return std::make_unique<EngineTeacherClient>([self] { return self->Start(); });
}

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

absl::StatusOr<ClientCredentials> ReadCredentials(const std::string& section,
                                                  const ServerAccess& access) {
  ClientCredentials credentials;
  credentials.tls_ca_file = access.tls_ca_file;
  credentials.tls_cert_file = access.tls_cert_file;
  credentials.tls_key_file = access.tls_key_file;
  if (!access.api_key_env.empty()) {
    TAOPD_ASSIGN_OR_RETURN(credentials.api_key,
                           ApiKeyFrom(access.api_key_env, section + ".api_key_env"));
  } else if (const std::string& file = access.api_key_file; !file.empty()) {
    const auto text = ReadFileToString(file, 1 << 16);
    if (!text.ok()) return Annotate(text.status(), section + ".api_key_file");
    credentials.api_key = text->substr(0, text->find_first_of("\r\n"));
    if (credentials.api_key.empty())
      return InvalidArgument(section, ".api_key_file: the first line of ", file, " is empty");
  }
  return credentials;
}

absl::StatusOr<std::unique_ptr<TeacherClient>> MakeTeacherClient(const TrainConfig& config,
                                                                 SelfTeacher* self) {
  TeacherClientOptions options = MakeClientOptions(config);
  if (!config.teacher.cache_only) {
    ClientCredentials& credentials = options;
    TAOPD_ASSIGN_OR_RETURN(credentials, ReadCredentials("teacher", config.teacher));
  }
  if (config.teachers.empty()) {
    const bool is_server = config.teacher.kind == TeacherKind::kServer;
    return Annotate(MakeOneClient(config.teacher.kind, config.teacher, options, self),
                    is_server ? "teacher.endpoints" : "teacher");
  }
  std::vector<RoutedTeacher> teachers;
  for (const TeacherEntryConfig& entry : config.teachers) {
    options.endpoints = entry.endpoints;
    options.model = entry.model;
    options.revision = entry.revision;
    TAOPD_ASSIGN_OR_RETURN(auto client,
                           Annotate(MakeOneClient(entry.kind, config.teacher, options, self),
                                    Concat("teachers: ", entry.name)));
    teachers.push_back({entry.name, std::move(client), entry.sources, entry.weight});
  }
  return std::make_unique<RoutingTeacherClient>(std::move(teachers));
}

absl::StatusOr<std::unique_ptr<TeacherClient>> MakeClientWithoutRetries(const TrainConfig& config) {
  if (config.teacher.kind != TeacherKind::kServer) {
    return InvalidArgument("teacher.kind = ", NameOf(config.teacher.kind),
                           ": there is no server to measure");
  }
  TeacherClientOptions options = MakeClientOptions(config);
  ClientCredentials& credentials = options;
  TAOPD_ASSIGN_OR_RETURN(credentials, ReadCredentials("teacher", config.teacher));
  options.retry = false;
  options.initial_backoff = options.max_backoff = absl::Milliseconds(10);
  return Annotate(MakeNetworkTeacherClient(options), "teacher.endpoints");
}

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
  ClientCredentials& credentials = options;
  TAOPD_ASSIGN_OR_RETURN(credentials, ReadCredentials("rollout", rollout));
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

TeacherViewOptions MakeTeacherViewOptions(const TrainConfig& config, const Student& student,
                                          const grading::Grader* grader) {
  TeacherViewOptions options;
  options.tokenizer = student.tokenizer.get();
  options.max_prompt_length = config.data.MaxTeacherPromptLength();
  options.skips_missing = config.data.teacher_prompt_missing == MissingTeacherPrompt::kSkip;
  options.is_correct = [eval = config.eval, tokenizer = options.tokenizer, grader](
                           const PromptRecord& prompt, const Rollout& rollout) {
    if (prompt.answer.empty()) return false;
    const bool truncated = rollout.finish != FinishReason::kStop;
    return GradeResponse(*grader, eval, tokenizer->Decode(rollout.response_ids), truncated, prompt)
        .correct;
  };
  return options;
}

absl::Status CheckGroupsStayTogether(const TrainConfig& config, int64_t num_ranks) {
  if (!config.data.HasSibling() && !config.reward.IsOn()) return absl::OkStatus();
  const int64_t num_shares = config.dist.deterministic ? config.dist.shares : num_ranks;
  if (config.trainer.mini_batch_size % num_shares == 0) return absl::OkStatus();
  return InvalidArgument("trainer.mini_batch_size = ", config.trainer.mini_batch_size,
                         config.data.HasSibling()
                             ? ": {sibling} in data.teacher_prompt_template needs"
                             : ": the section reward needs",
                         " all responses to a prompt on one rank, so it must be a multiple of the ",
                         num_shares, config.dist.deterministic ? " dist.shares" : " ranks");
}

absl::StatusOr<PromptModel> PromptModelOf(const DataConfig& data, const Student& student) {
  return MakePromptModel(data, student.tokenizer_dir, student.tokenizer.get(),
                         student.decoder->config());
}

}  // namespace taopd
