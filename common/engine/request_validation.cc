#include "common/engine/request_validation.h"

#include <cmath>
#include <string_view>

#include "common/engine/sampling/sampling_fields.h"
#include "common/memory/cuda_graphs.h"
#include "common/memory/engine_plan.h"

namespace taopd {
namespace {

absl::Status ValidateIds(const char* field, const std::vector<int32_t>& ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return InvalidArgument(field, "[", i, "] is ", ids[i],
                             ": must be at least 0 and below vocab_size ", vocab_size);
    }
  }
  return absl::OkStatus();
}

// The messages name the fields as teacher.proto does, because most score requests arrive in that
// protocol.
absl::Status ValidateScore(const ScoreParams& score, int64_t num_tokens,
                           const EngineLimits& limits) {
  if (score.start < 1 || score.start >= num_tokens) {
    return InvalidArgument("score_start ", score.start,
                           " must be at least 1 and below the number of token_ids ", num_tokens);
  }
  if (score.top_k < 0 || score.top_k > limits.max_logprobs) {
    return InvalidArgument("top_k ", score.top_k, " must be between 0 and max_logprobs ",
                           limits.max_logprobs);
  }
  if (!std::isfinite(score.temperature) || score.temperature < kMinScoreTemperature) {
    return InvalidArgument("temperature ", score.temperature,
                           " of the scores must be a finite number of at least ",
                           kMinScoreTemperature);
  }
  if (score.num_candidates < 0 || score.num_candidates > limits.max_candidates) {
    return InvalidArgument("num_candidates ", score.num_candidates,
                           " must be between 0 and max_candidates ", limits.max_candidates);
  }
  if (score.dense && limits.vocab_size > limits.max_dense_vocab_size) {
    return InvalidArgument("options.dense: the vocabulary of ", limits.vocab_size,
                           " exceeds max_dense_vocab_size ", limits.max_dense_vocab_size);
  }
  const int64_t num_rows = num_tokens - score.start;
  if (static_cast<int64_t>(score.candidate_ids.size()) != num_rows * score.num_candidates) {
    return InvalidArgument("candidate_ids has ", score.candidate_ids.size(), " entries: must be ",
                           num_rows * score.num_candidates, ", which is ", num_rows,
                           " scored rows times num_candidates ", score.num_candidates);
  }
  return ValidateIds("candidate_ids", score.candidate_ids, limits.vocab_size);
}

// The fields that change logits.
absl::Status ValidateProcessors(const SamplingParams& sampling, int64_t vocab_size) {
  if (sampling.allowed_token_ids) {
    if (sampling.allowed_token_ids->empty())
      return InvalidArgument("sampling.allowed_token_ids is empty: at least 1 id must be allowed");
    if (static_cast<int64_t>(sampling.allowed_token_ids->size()) > vocab_size) {
      return InvalidArgument("sampling.allowed_token_ids has ", sampling.allowed_token_ids->size(),
                             " entries: exceeds vocab_size ", vocab_size);
    }
    TAOPD_RETURN_IF_ERROR(
        ValidateIds("sampling.allowed_token_ids", *sampling.allowed_token_ids, vocab_size));
  }
  if (static_cast<int64_t>(sampling.bad_words_ids.size()) > kMaxBadWords) {
    return InvalidArgument("sampling.bad_words_ids has ", sampling.bad_words_ids.size(),
                           " entries: at most ", kMaxBadWords);
  }
  for (size_t i = 0; i < sampling.bad_words_ids.size(); ++i) {
    const std::vector<int32_t>& word = sampling.bad_words_ids[i];
    const std::string field = Concat("sampling.bad_words_ids[", i, "]");
    if (word.empty() || static_cast<int64_t>(word.size()) > kMaxBadWordTokens) {
      return InvalidArgument(field, " has ", word.size(), " ids: must have between 1 and ",
                             kMaxBadWordTokens);
    }
    TAOPD_RETURN_IF_ERROR(ValidateIds(field.c_str(), word, vocab_size));
  }
  for (const auto& [id, bias] : sampling.logit_bias.entries()) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument("sampling.logit_bias has the id ", id,
                             ": must be at least 0 and below vocab_size ", vocab_size);
    }
    if (!std::isfinite(bias))
      return InvalidArgument("sampling.logit_bias of id ", id, " is ", bias, ": must be finite");
  }
  return absl::OkStatus();
}

// The fields that are single numbers.
absl::Status ValidateNumbers(const SamplingParams& sampling) {
  // A client may ask for temperatures up to 2, the trainer for any.
  if (!std::isfinite(sampling.temperature) || sampling.temperature < 0.0f) {
    return InvalidArgument("sampling.temperature ", sampling.temperature,
                           " must be a finite number of at least 0");
  }
  if (sampling.temperature > 0.0f && sampling.temperature < kMinScoreTemperature) {
    return InvalidArgument("sampling.temperature ", sampling.temperature,
                           " must be 0, which is greedy, or at least ", kMinScoreTemperature);
  }
  for (const SamplingField& field : SamplingFields()) {
    const double value = field.get(sampling);
    if (field.in_range(value) || std::string_view(field.name) == "temperature") continue;
    return InvalidArgument("sampling.", field.name, " ", value, " ", field.range);
  }
  return absl::OkStatus();
}

absl::Status ValidateSampling(const SamplingParams& sampling, int64_t num_tokens,
                              const EngineLimits& limits) {
  if (!limits.can_generate) {
    return FailedPrecondition(
        "sampling is refused: kv_cache_bytes is 0, so this engine only scores");
  }
  if (sampling.max_new_tokens < 1) {
    return InvalidArgument("sampling.max_new_tokens ", sampling.max_new_tokens,
                           " must be at least 1");
  }
  if (sampling.max_new_tokens > limits.max_model_len - num_tokens) {
    return InvalidArgument("sampling.max_new_tokens ", sampling.max_new_tokens, " after ",
                           num_tokens, " prompt tokens exceeds max_model_len ",
                           limits.max_model_len);
  }
  if (sampling.max_new_tokens > limits.max_generation_len - num_tokens) {
    return InvalidArgument("sampling.max_new_tokens ", sampling.max_new_tokens, " after ",
                           num_tokens, " prompt tokens exceeds max_generation_len ",
                           limits.max_generation_len,
                           ", the longest sequence that the KV cache holds");
  }
  if (sampling.min_tokens < 0 || sampling.min_tokens > sampling.max_new_tokens) {
    return InvalidArgument("sampling.min_tokens ", sampling.min_tokens,
                           " must be between 0 and max_new_tokens ", sampling.max_new_tokens);
  }
  TAOPD_RETURN_IF_ERROR(ValidateProcessors(sampling, limits.vocab_size));
  TAOPD_RETURN_IF_ERROR(ValidateNumbers(sampling));
  if (sampling.num_log_probs < 0 || sampling.num_log_probs > limits.max_logprobs) {
    return InvalidArgument("sampling.num_log_probs ", sampling.num_log_probs,
                           " must be between 0 and max_logprobs ", limits.max_logprobs);
  }
  if (static_cast<int64_t>(sampling.stop_token_ids.size()) > kMaxStopTokenIds) {
    return InvalidArgument("sampling.stop_token_ids has ", sampling.stop_token_ids.size(),
                           " entries: at most ", kMaxStopTokenIds);
  }
  return ValidateIds("sampling.stop_token_ids", sampling.stop_token_ids, limits.vocab_size);
}

}  // namespace

absl::Status ValidateRequest(const InferenceRequest& request, const EngineLimits& limits) {
  if (!request.score && !request.sampling) {
    return InvalidArgument("a request must ask for score, sampling or both");
  }
  const int64_t num_tokens = static_cast<int64_t>(request.token_ids.size());
  if (num_tokens < 1) return InvalidArgument("token_ids is empty: at least 1 token is needed");
  if (num_tokens > limits.max_model_len) {
    return InvalidArgument("token_ids has ", num_tokens, " entries: exceeds max_model_len ",
                           limits.max_model_len);
  }
  TAOPD_RETURN_IF_ERROR(ValidateIds("token_ids", request.token_ids, limits.vocab_size));
  if (request.score) TAOPD_RETURN_IF_ERROR(ValidateScore(*request.score, num_tokens, limits));
  if (request.sampling)
    TAOPD_RETURN_IF_ERROR(ValidateSampling(*request.sampling, num_tokens, limits));
  return absl::OkStatus();
}

absl::Status ValidateEngineOptions(const EngineOptions& options) {
  TAOPD_RETURN_IF_ERROR(CheckLowerBounds({
      {"max_model_len", options.max_model_len, 0},
      {"max_logprobs", options.max_logprobs, 0},
      {"max_candidates", options.max_candidates, 0},
      {"max_dense_vocab_size", options.max_dense_vocab_size, 0},
      {"max_num_seqs", options.max_num_seqs, 1},
      {"max_num_batched_tokens", options.max_num_batched_tokens, 0},
      {"max_queued_tokens", options.max_queued_tokens, 1},
      {"max_queued_requests", options.max_queued_requests, 1},
      {"head_workspace_bytes", options.head_workspace_bytes, 0},
      {"kv_cache_bytes", options.kv_cache_bytes, kAutoKvCache},
      {"tensor_parallel_size", options.tensor_parallel_size, 1},
  }));
  const double share = options.max_client_queue_share;
  if (!(share > 0.0 && share <= 1.0)) {
    return InvalidArgument("max_client_queue_share ", share, " must be above 0 and at most 1");
  }
  TAOPD_RETURN_IF_ERROR(CheckCaptureLimits(options.cuda_graphs, options.max_num_seqs));
  return ValidateMemoryLimits(options.memory);
}

}  // namespace taopd
