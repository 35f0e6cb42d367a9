#include "server/http/dialects/protocols.h"

#include <nlohmann/json.hpp>

#include "server/generation/request_fields.h"
#include "server/http/request/common_fields.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr char kParams[] = "sampling_params";
constexpr char kTokens[] = "token_ids";

// vLLM's own way to ask for log-probs of chosen ids: row i belongs to position start + i + 1.
absl::Status ReadChosenIds(JsonFields& sampling, const ServedModel& model, TokenRequest* request) {
  constexpr char kStart[] = "prompt_logprob_start";
  const std::optional<int64_t> start = sampling.Integer(kStart);
  const ordered_json* ids = sampling.Find("prompt_logprob_token_ids");
  if (start && (*start < 0 || ids == nullptr)) {
    return FieldError(kStart, kStart, " must be at least 0 and needs prompt_logprob_token_ids.");
  }
  if (ids == nullptr || !ids->is_array() || ids->empty() || !ids->front().is_array())
    return absl::OkStatus();  // one list is our own form
  if (request->stream) {
    return FieldError("prompt_logprob_token_ids",
                      "prompt_logprob_token_ids are not available when stream=true.");
  }
  request->npy_candidates = true;
  request->scoring.start = start.value_or(0) + 1;
  return absl::OkStatus();
}

absl::Status ReadParams(JsonFields& sampling, const ServedModel& model, TokenRequest* request) {
  // As in vLLM, generation_config.json gives no defaults here.
  TAOPD_RETURN_IF_ERROR(ReadSampling(sampling, SamplingParams(), model, request));
  request->detokenize = sampling.Bool("detokenize").value_or(true);
  request->max_tokens = sampling.ClampedInteger("max_tokens").value_or(INT64_MAX);
  TAOPD_RETURN_IF_ERROR(CheckMaxTokens(request->max_tokens));
  if (!request->stop.empty() && !request->detokenize) {
    return FieldError("stop",
                      "stop strings are only supported when detokenize is True. Set "
                      "detokenize=True to use stop.");
  }
  TAOPD_RETURN_IF_ERROR(ReadLogprobs(sampling, "logprobs", "sample", model, &request->logprobs));
  TAOPD_RETURN_IF_ERROR(
      ReadLogprobs(sampling, "prompt_logprobs", "prompt", model, &request->prompt_logprobs));
  TAOPD_RETURN_IF_ERROR(ReadChosenIds(sampling, model, request));
  const int64_t start = request->scoring.start;
  if (request->npy_candidates && !request->prompt_logprobs) request->prompt_logprobs = 0;
  TAOPD_RETURN_IF_ERROR(ReadScoring(sampling, model, request));
  if (request->npy_candidates) request->scoring.start = start;
  request->ranks = true;
  return sampling.error();
}

}  // namespace

absl::Status ReadTokenRequest(JsonFields& fields, const ServedModel& model, TokenRequest* request) {
  TAOPD_RETURN_IF_ERROR(ReadEnvelope(fields, model, request));
  const std::string mode = fields.Text("output_mode").value_or("tokens");
  request->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  const ordered_json* ids = fields.Find(kTokens);
  if (mode != "tokens" && mode != "text") return WrongType("output_mode", "'tokens' or 'text'");
  request->text_output = mode == "text";
  TAOPD_RETURN_IF_ERROR(ReadParams(fields.Nested(kParams), model, request));
  TAOPD_RETURN_IF_ERROR(fields.error());
  if (ids == nullptr) return MissingField(kTokens);
  if (fields.Find(kParams) == nullptr) return MissingField(kParams);
  if (!ids->is_array()) return WrongType(kTokens, "a valid list");
  if (ids->empty()) return WrongType(kTokens, "a list with at least 1 item");
  if (request->text_output && (model.tokenizer == nullptr || !request->detokenize)) {
    return FieldError("output_mode",
                      "output_mode='text' requires a tokenizer and sampling_params.detokenize.");
  }
  TAOPD_RETURN_IF_ERROR(AddPromptIds(*ids, kTokens, model, request));
  return FinishPrompts(model, /*echo_only=*/false, request);
}

}  // namespace taopd
