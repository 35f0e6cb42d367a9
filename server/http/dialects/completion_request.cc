#include "server/http/dialects/protocols.h"

#include <nlohmann/json.hpp>

#include "server/generation/prompts.h"
#include "server/generation/request_fields.h"
#include "server/http/request/common_fields.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxPrompts = 1024;  // vLLM's VLLM_MAX_COMPLETION_PROMPTS
constexpr char kPrompt[] = "prompt";

absl::Status ReadPrompts(JsonFields& fields, const ServedModel& model, CompletionRequest* request) {
  const ordered_json* prompt = fields.Find(kPrompt);
  const bool add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  if (prompt == nullptr || (prompt->is_string() && prompt->get_ref<const std::string&>().empty())) {
    return FieldError(kPrompt, "Either prompt or prompt_embeds must be provided and non-empty.");
  }
  if (prompt->is_string()) {
    return AddPromptText(prompt->get_ref<const std::string&>(), add_special_tokens, kPrompt, model,
                         request);
  }
  if (!prompt->is_array())
    return WrongType(kPrompt, "a text, a list of texts or a list of token ids");
  if (prompt->empty()) return InvalidArgument("You must pass at least one prompt");
  if (prompt->front().is_number()) return AddPromptIds(*prompt, kPrompt, model, request);
  if (prompt->size() > kMaxPrompts) {
    return FieldError(kPrompt, "prompt list length ", prompt->size(),
                      " exceeds the maximum allowed count of ", kMaxPrompts, ".");
  }
  const bool texts = prompt->front().is_string();
  for (const ordered_json& item : *prompt) {
    if (texts ? !item.is_string() : !item.is_array()) {
      return WrongType(kPrompt, "a list of texts or a list of lists of token ids");
    }
    TAOPD_RETURN_IF_ERROR(texts ? AddPromptText(item.get_ref<const std::string&>(),
                                                add_special_tokens, kPrompt, model, request)
                                : AddPromptIds(item, kPrompt, model, request));
  }
  return absl::OkStatus();
}

absl::Status ReadReports(JsonFields& fields, const ServedModel& model, CompletionRequest* request) {
  request->echo = fields.Bool("echo").value_or(false);
  request->max_tokens = fields.ClampedInteger("max_tokens").value_or(16);
  const bool only_echoes = request->max_tokens == 0 && request->echo;
  if (!only_echoes) TAOPD_RETURN_IF_ERROR(CheckMaxTokens(request->max_tokens));
  request->return_tokens_as_token_ids = fields.Bool("return_tokens_as_token_ids").value_or(false);
  request->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  TAOPD_RETURN_IF_ERROR(ReadLogprobs(fields, "logprobs", "sample", model, &request->logprobs));
  TAOPD_RETURN_IF_ERROR(ReadPromptLogprobs(fields, model, request));
  if (request->echo && !request->prompt_logprobs) request->prompt_logprobs = request->logprobs;
  return ReadScoring(fields, model, request);
}

}  // namespace

absl::Status ReadCompletionRequest(JsonFields& fields, const ServedModel& model,
                                   CompletionRequest* request) {
  TAOPD_RETURN_IF_ERROR(ReadEnvelope(fields, model, request));
  TAOPD_RETURN_IF_ERROR(ReadSampling(fields, model.sampling_defaults, model, request));
  TAOPD_RETURN_IF_ERROR(ReadReports(fields, model, request));
  TAOPD_RETURN_IF_ERROR(ReadTruncation(fields, request));
  TAOPD_RETURN_IF_ERROR(fields.error());
  TAOPD_RETURN_IF_ERROR(ReadPrompts(fields, model, request));
  TAOPD_RETURN_IF_ERROR(fields.error());
  return FinishPrompts(model, /*echo_only=*/request->max_tokens == 0, request);
}

}  // namespace taopd
