#include "server/http/generate/token_request.h"

#include <nlohmann/json.hpp>

#include "server/http/generation/prompts.h"
#include "server/http/generation/request_body.h"
#include "server/http/generation/sampling_request.h"
#include "server/http/structured/structured_output.h"

namespace taopd {
namespace {

constexpr char kParams[] = "sampling_params";
constexpr char kTokens[] = "token_ids";

HttpError Missing(const char* name) {
  return HttpError{
      400, "Bad Request", Concat("body.", name),
      Concat("1 validation error:\n  {'loc': ('body', '", name, "'), 'msg': 'Field required'}")};
}

// vLLM's own way to ask for log-probs of chosen ids: row i belongs to position start + i + 1.
std::optional<HttpError> ReadChosenIds(JsonFields& sampling, const ServedModel& model,
                                       TokenRequest* request) {
  constexpr char kStart[] = "prompt_logprob_start";
  const std::optional<int64_t> start = sampling.Integer(kStart);
  const nlohmann::json* ids = sampling.Find("prompt_logprob_token_ids");
  if (start && (*start < 0 || ids == nullptr)) {
    return BadField(kStart, Concat(kStart, " must be at least 0 and needs ",
                                   "prompt_logprob_token_ids. (parameter=", kStart, ")"));
  }
  if (ids == nullptr || !ids->is_array() || ids->empty() || !ids->front().is_array())
    return std::nullopt;  // one list is our own form
  if (request->stream) {
    return BadField("prompt_logprob_token_ids",
                    "prompt_logprob_token_ids are not available when stream=true. "
                    "(parameter=prompt_logprob_token_ids)");
  }
  request->npy_candidates = true;
  request->scoring.start = start.value_or(0) + 1;
  return std::nullopt;
}

std::optional<HttpError> ReadParams(JsonFields& sampling, const ServedModel& model,
                                    TokenRequest* request) {
  // As in vLLM, generation_config.json gives no defaults here.
  if (auto error = ReadSampling(sampling, SamplingParams(), model, request)) return error;
  request->detokenize = sampling.Bool("detokenize").value_or(true);
  for (const char* name : {"flat_logprobs", "skip_reading_prefix_cache", "skip_clone"})
    sampling.Bool(name);  // of vLLM's inside
  sampling.Integer("output_kind");
  request->max_tokens = sampling.ClampedInteger("max_tokens").value_or(INT64_MAX);
  if (request->max_tokens < 1) {
    return BadField("max_tokens",
                    Concat("max_tokens must be at least 1, got ", request->max_tokens,
                           ". (parameter=max_tokens, value=", request->max_tokens, ")"));
  }
  if (!request->stop.empty() && !request->detokenize) {
    return BadField("stop",
                    "stop strings are only supported when detokenize is True. Set detokenize=True "
                    "to use stop. (parameter=stop)");
  }
  if (auto error = ReadLogprobs(sampling, "logprobs", "sample", model, &request->logprobs))
    return error;
  if (auto error =
          ReadLogprobs(sampling, "prompt_logprobs", "prompt", model, &request->prompt_logprobs)) {
    return error;
  }
  if (auto error = ReadChosenIds(sampling, model, request)) return error;
  const int64_t start = request->scoring.start;
  if (request->npy_candidates && !request->prompt_logprobs) request->prompt_logprobs = 0;
  if (auto error = ReadScoring(sampling, model, request)) return error;
  if (request->npy_candidates) request->scoring.start = start;
  request->ranks = true;
  return sampling.error();
}

}  // namespace

std::optional<HttpError> ReadTokenRequest(JsonFields& fields, JsonFields& sampling,
                                          const ServedModel& model, TokenRequest* request) {
  if (auto error = ReadEnvelope(fields, model, request)) return error;
  const std::string mode = fields.Text("output_mode").value_or("tokens");
  request->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  for (const char* name :
       {"features", "content_parts", "kv_transfer_params", "ec_transfer_params"}) {
    const nlohmann::json* value = fields.Find(name);
    if (value != nullptr && !value->empty()) {
      return BadField(name,
                      Concat(name, " is not supported by this server. (parameter=", name, ")"));
    }
  }
  for (const char* name : {"token_offsets", "reasoning_ended", "reasoning_parser_kwargs"})
    fields.Find(name);  // of vLLM's renderer
  const nlohmann::json* ids = fields.Find(kTokens);
  const nlohmann::json* params = fields.Find(kParams);
  if (mode != "tokens" && mode != "text") return WrongType("output_mode", "'tokens' or 'text'");
  request->text_output = mode == "text";
  if (auto error = ReadParams(sampling, model, request)) return error;
  if (fields.error()) return fields.error();
  if (ids == nullptr) return Missing(kTokens);
  if (params == nullptr) return Missing(kParams);
  if (!params->is_object()) return WrongType(kParams, "a valid dictionary");
  if (!ids->is_array()) return WrongType(kTokens, "a valid list");
  if (ids->empty()) return WrongType(kTokens, "a list with at least 1 item");
  if (request->text_output && (model.tokenizer == nullptr || !request->detokenize)) {
    return BadField("output_mode",
                    "output_mode='text' requires a tokenizer and sampling_params.detokenize. "
                    "(parameter=output_mode)");
  }
  if (auto error = AddPromptIds(*ids, kTokens, model, request)) return error;
  return FinishPrompts(model, /*echo_only=*/false, request);
}

std::variant<TokenRequest, HttpError> ParseTokenRequest(const std::string& body,
                                                        const ServedModel& model) {
  TokenRequest request;
  auto error = ReadBody(body, [&](const nlohmann::json& json) {
    const nlohmann::json none = nlohmann::json::object();
    const auto params = json.find(kParams);
    JsonFields fields(json);
    JsonFields sampling(params != json.end() && params->is_object() ? *params : none,
                        "sampling_params.");
    auto refused = ReadTokenRequest(fields, sampling, model, &request);
    if (!refused) refused = FinishStructuredOutput(body, {kParams}, &request);
    if (!refused) {
      fields.LogUnknown("/inference/v1/generate");
      sampling.LogUnknown("/inference/v1/generate");
    }
    return refused;
  });
  if (error) return *std::move(error);
  return request;
}

}  // namespace taopd
