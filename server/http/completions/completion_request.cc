#include "server/http/completions/completion_request.h"

#include <nlohmann/json.hpp>

#include "server/generation/prompts.h"
#include "server/http/generation/prompts.h"
#include "server/http/generation/request_body.h"
#include "server/http/generation/sampling_request.h"
#include "server/http/structured/structured_output.h"

namespace taopd {
namespace {

constexpr size_t kMaxPrompts = 1024;  // vLLM's VLLM_MAX_COMPLETION_PROMPTS
constexpr char kPrompt[] = "prompt";

std::optional<HttpError> ReadPrompts(JsonFields& fields, const ServedModel& model,
                                     CompletionRequest* request) {
  const nlohmann::json* prompt = fields.Find(kPrompt);
  const nlohmann::json* embeds = fields.Find("prompt_embeds");
  const bool add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  if (embeds != nullptr && !(embeds->is_array() && embeds->empty())) {
    return BadField("prompt_embeds",
                    "prompt_embeds is not supported by this server. (parameter=prompt_embeds)");
  }
  if (prompt == nullptr || (prompt->is_string() && prompt->get_ref<const std::string&>().empty())) {
    return BadField(
        kPrompt,
        "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)");
  }
  if (prompt->is_string()) {
    return ErrorOf(AddPromptText(prompt->get_ref<const std::string&>(), add_special_tokens, kPrompt,
                                 model, request));
  }
  if (!prompt->is_array())
    return WrongType(kPrompt, "a text, a list of texts or a list of token ids");
  if (prompt->empty()) return BadRequest("You must pass at least one prompt");
  if (prompt->front().is_number()) return AddPromptIds(*prompt, kPrompt, model, request);
  if (prompt->size() > kMaxPrompts) {
    return BadField(kPrompt, Concat("prompt list length ", prompt->size(),
                                    " exceeds the maximum allowed count of ", kMaxPrompts,
                                    ". (parameter=prompt)"));
  }
  const bool texts = prompt->front().is_string();
  for (const nlohmann::json& item : *prompt) {
    if (texts ? !item.is_string() : !item.is_array()) {
      return WrongType(kPrompt, "a list of texts or a list of lists of token ids");
    }
    std::optional<HttpError> error =
        texts ? ErrorOf(AddPromptText(item.get_ref<const std::string&>(), add_special_tokens,
                                      kPrompt, model, request))
              : AddPromptIds(item, kPrompt, model, request);
    if (error) return error;
  }
  return std::nullopt;
}

std::optional<HttpError> ReadReports(JsonFields& fields, const ServedModel& model,
                                     CompletionRequest* request) {
  request->echo = fields.Bool("echo").value_or(false);
  request->max_tokens = fields.ClampedInteger("max_tokens").value_or(16);
  if (request->max_tokens < 1 && !(request->max_tokens == 0 && request->echo)) {
    return BadField("max_tokens",
                    Concat("max_tokens must be at least 1, got ", request->max_tokens,
                           ". (parameter=max_tokens, value=", request->max_tokens, ")"));
  }
  request->return_tokens_as_token_ids = fields.Bool("return_tokens_as_token_ids").value_or(false);
  request->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  if (auto error = ReadLogprobs(fields, "logprobs", "sample", model, &request->logprobs))
    return error;
  if (auto error =
          ReadLogprobs(fields, "prompt_logprobs", "prompt", model, &request->prompt_logprobs)) {
    return error;
  }
  if (request->stream && request->prompt_logprobs.value_or(0) != 0) {
    return BadField("prompt_logprobs",
                    "`prompt_logprobs` are not available when `stream=True`. "
                    "(parameter=prompt_logprobs)");
  }
  if (request->echo && !request->prompt_logprobs) request->prompt_logprobs = request->logprobs;
  if (!fields.Text("suffix").value_or("").empty()) {
    return BadField("suffix", "suffix is not supported by this server. (parameter=suffix)");
  }
  return ReadScoring(fields, model, request);
}

}  // namespace

std::optional<HttpError> ReadCompletionRequest(JsonFields& fields, const ServedModel& model,
                                               CompletionRequest* request) {
  if (auto error = ReadEnvelope(fields, model, request)) return error;
  if (auto error = ReadSampling(fields, model.sampling_defaults, model, request)) return error;
  if (auto error = ReadReports(fields, model, request)) return error;
  if (auto error = ReadTruncation(fields, request)) return error;
  if (fields.error()) return fields.error();
  if (auto error = ReadPrompts(fields, model, request)) return error;
  if (fields.error()) return fields.error();
  return FinishPrompts(model, /*echo_only=*/request->max_tokens == 0, request);
}

std::variant<CompletionRequest, HttpError> ParseCompletionRequest(const std::string& body,
                                                                  const ServedModel& model) {
  CompletionRequest request;
  auto error = ReadBody(body, [&](const nlohmann::json& json) {
    JsonFields fields(json);
    auto refused = ReadCompletionRequest(fields, model, &request);
    if (!refused) refused = FinishStructuredOutput(body, {}, &request);
    if (!refused) fields.LogUnknown("/v1/completions");
    return refused;
  });
  if (error) return *std::move(error);
  return request;
}

}  // namespace taopd
