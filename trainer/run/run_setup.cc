#include "trainer/run/run_setup.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <iostream>
#include <new>
#include <thread>

#include "common/base/memory.h"
#include "common/config/yaml.h"
#include "common/engine/torch_engine.h"
#include "common/wire/teacher_protocol.h"
#include "trainer/eval/kl_evaluation.h"
#include "trainer/eval/local_source.h"
#include "trainer/step/support.h"
#include "trainer/teacher/verify_scores.h"

namespace taopd {

void SetNumThreads(int64_t num_threads) {
  if (num_threads == 0) num_threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(num_threads));
}

std::string ShowEffectiveConfig(const SettingTable& settings) {
  std::string yaml = WriteYamlSettings(settings);
  std::cout << "# effective configuration\n" << yaml << std::flush;
  return yaml;
}

std::optional<RunFailure> CatchExceptions(const std::function<std::optional<RunFailure>()>& run) {
  try {
    return run();
  } catch (const c10::Error& error) {
    return RunFailure{ExitCode::kInternal, Internal(error.what_without_backtrace())};
  } catch (const std::bad_alloc&) {
    return RunFailure{ExitCode::kInternal, ResourceExhausted("out of memory")};
  }
}

absl::StatusOr<std::unique_ptr<TeacherClient>> MakeTeacherClient(const TeacherConfig& config) {
  GrpcTeacherOptions options;
  options.endpoints = config.endpoints;
  options.request_timeout = absl::Seconds(config.timeout_s);
  options.outage_budget = absl::Seconds(config.outage_budget_s);
  options.max_in_flight_per_endpoint = config.max_in_flight;
  return MakeGrpcTeacherClient(options);
}

namespace {

absl::Status CheckDense(const char* who, const TeacherInfo& teacher) {
  if (teacher.head_vocab_size <= teacher.max_dense_vocab_size) return absl::OkStatus();
  return FailedPrecondition(who,
                            " needs the teacher's log-probs of every token: its vocabulary of ",
                            teacher.head_vocab_size, " exceeds its max_dense_vocab_size of ",
                            teacher.max_dense_vocab_size);
}

// What the teacher is asked for because of the objective and its support.
absl::Status CheckSupportFits(const TrainConfig& config, const TeacherInfo& teacher,
                              int64_t vocab_size) {
  const SupportOptions support = MakeSupportOptions(config, vocab_size);
  if (support.teacher_top_k > teacher.max_top_k) {
    return FailedPrecondition("teacher.top_k ", support.teacher_top_k,
                              " exceeds the teacher's limit of ", teacher.max_top_k);
  }
  if (support.student_top_k > teacher.max_candidates) {
    return FailedPrecondition("objective.student_top_k ", support.student_top_k,
                              " exceeds the teacher's limit of candidates, ",
                              teacher.max_candidates);
  }
  for (const auto& [name, top_k] : {std::pair("teacher.top_k ", support.teacher_top_k),
                                    std::pair("objective.student_top_k ", support.student_top_k)}) {
    if (top_k > vocab_size)
      return FailedPrecondition(name, top_k, " exceeds the vocabulary of ", vocab_size);
  }
  if (support.kind == SupportKind::kFullVocabulary)
    TAOPD_RETURN_IF_ERROR(CheckDense("the objective", teacher));
  if (config.objective.full_kl_rows > 0)
    TAOPD_RETURN_IF_ERROR(CheckDense("objective.full_kl_rows", teacher));
  // The longest response in one message.
  const int64_t bytes = ScoreReplyBytes(MakeTeacherRequest(support, Rollout(), ""),
                                        config.data.max_response_length, teacher);
  const int64_t limit = GrpcTeacherOptions().max_message_bytes - kScoreReplyOverheadBytes;
  if (bytes > limit) {
    return FailedPrecondition("data.max_response_length ", config.data.max_response_length,
                              ": the teacher's scores of such a response take ", bytes,
                              " bytes, above the ", limit,
                              " of a message: lower it or the tokens compared per position");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTeacherFits(const TrainConfig& config, const TeacherInfo& teacher,
                              const Student& student) {
  const ModelConfig& model = student.decoder->config();
  if (student.tokenizer && !teacher.tokenizer_hash.empty() &&
      teacher.tokenizer_hash != student.tokenizer->hash()) {
    return FailedPrecondition("the teacher ", teacher.model_name, " has another tokenizer (",
                              teacher.tokenizer_hash.substr(0, 12), ") than the student (",
                              student.tokenizer->hash().substr(0, 12),
                              "): their token ids do not mean the same");
  }
  if (teacher.head_vocab_size < model.vocab_size) {
    return FailedPrecondition("the teacher's vocabulary of ", teacher.head_vocab_size,
                              " is smaller than the student's of ", model.vocab_size,
                              ": it cannot score the student's tokens");
  }
  TAOPD_RETURN_IF_ERROR(CheckSupportFits(config, teacher, model.vocab_size));
  if (config.teacher.temperature != 1.0 && !teacher.supports_temperature) {
    return FailedPrecondition("teacher.temperature ", config.teacher.temperature,
                              ": the teacher supports only 1");
  }
  const int64_t longest = config.data.max_prompt_length + config.data.max_response_length;
  if (longest > teacher.max_model_len) {
    return FailedPrecondition("data.max_prompt_length + data.max_response_length = ", longest,
                              " exceeds the teacher's max_model_len ", teacher.max_model_len);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<InferenceEngine>> MakeRolloutEngine(
    const TrainConfig& config, std::shared_ptr<Decoder> student) {
  const bool generates = config.eval.measure == "accuracy" && !config.data.val.empty();
  const int64_t longest_response =
      std::max(config.data.max_response_length, generates ? config.eval.max_response_length : 0);
  EngineOptions options;
  options.max_model_len = config.data.max_prompt_length + longest_response;
  if (options.max_model_len > student->config().max_position_embeddings) {
    return InvalidArgument(
        "data.max_prompt_length + the longest response (data.max_response_length, "
        "eval.max_response_length) = ",
        options.max_model_len, " exceeds the student's max_position_embeddings ",
        student->config().max_position_embeddings);
  }
  options.max_num_seqs = config.rollout.max_num_seqs;
  options.max_logprobs = MakeSupportOptions(config, student->config().vocab_size).student_top_k;
  options.kv_cache_bytes = BytesOfGib(config.rollout.kv_cache_gb);
  options.head_workspace_bytes = BytesOfMib(config.trainer.head_workspace_mb);
  // The size of a step and of an evaluation is the configuration's choice.
  options.max_queued_tokens = INT64_MAX / 2;
  options.max_queued_requests = INT64_MAX / 2;
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

absl::StatusOr<EvalResult> RunEvaluation(const TrainConfig& config,
                                         const std::vector<PromptRecord>& records, Student* student,
                                         RolloutEngine* engine, TeacherClient* teacher) {
  if (config.eval.measure == "kl") {
    const int64_t top_k = config.eval.kl_top_k > 0 ? config.eval.kl_top_k : config.teacher.top_k;
    KlEvaluationOptions options;
    options.top_k = static_cast<int32_t>(top_k);
    options.micro_batch_tokens = config.trainer.micro_batch_tokens;
    options.head_workspace_bytes = BytesOfMib(config.trainer.head_workspace_mb);
    EvalResult result;
    TAOPD_ASSIGN_OR_RETURN(result.metrics,
                           EvaluateKl(options, records, student->decoder.get(), teacher));
    return result;
  }
  LocalSource source(engine, student->tokenizer.get());
  AccuracyRun run;
  run.config = &config.eval;
  run.seed = config.run.seed;
  run.problems = &records;
  run.source = &source;
  return EvaluateAccuracy(run);
}

}  // namespace taopd
