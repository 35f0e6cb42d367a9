#include "server/http/chat/chat.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "server/generation/prompts.h"
#include "server/generation/request_fields.h"
#include "server/http/request/common_fields.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

absl::Status ReadReasoningEffort(JsonFields& fields, ordered_json* kwargs) {
  const std::optional<std::string> effort = fields.Text("reasoning_effort");
  if (!effort) return absl::OkStatus();
  static const std::set<std::string> kEfforts = {"none", "minimal", "low", "medium",
                                                 "high", "xhigh",   "max"};
  if (!kEfforts.contains(*effort)) {
    return WrongType("reasoning_effort",
                     "'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'");
  }
  (*kwargs)["reasoning_effort"] = *effort;
  if (!kwargs->contains("enable_thinking")) (*kwargs)["enable_thinking"] = *effort != "none";
  return absl::OkStatus();
}

absl::Status ReadReports(JsonFields& fields, const ServedModel& model, bool* echo,
                         ChatRequest* request) {
  *echo = fields.Bool("echo").value_or(false);
  const std::optional<int64_t> max_tokens = fields.ClampedInteger("max_tokens");
  const std::optional<int64_t> max_completion_tokens =
      fields.ClampedInteger("max_completion_tokens");
  request->max_tokens =
      max_completion_tokens ? *max_completion_tokens : max_tokens.value_or(INT64_MAX);
  TAOPD_RETURN_IF_ERROR(CheckMaxTokens(request->max_tokens));
  request->return_tokens_as_token_ids = fields.Bool("return_tokens_as_token_ids").value_or(false);
  request->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  request->return_prompt_text = fields.Bool("return_prompt_text").value_or(false);
  std::optional<int32_t> top_logprobs;
  TAOPD_RETURN_IF_ERROR(ReadLogprobs(fields, "top_logprobs", "sample", model, &top_logprobs));
  const bool wants_logprobs = fields.Bool("logprobs").value_or(false);
  if (top_logprobs.value_or(0) > 0 && !wants_logprobs) {
    return FieldError("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.");
  }
  if (wants_logprobs) request->logprobs = top_logprobs.value_or(0);
  TAOPD_RETURN_IF_ERROR(ReadPromptLogprobs(fields, model, request));
  if (*echo && !request->prompt_logprobs) request->prompt_logprobs = top_logprobs.value_or(0);
  return ReadScoring(fields, model, request);
}

}  // namespace

absl::StatusOr<RenderedChat> RenderChat(JsonFields& fields, const ServedModel& model) {
  TAOPD_RETURN_IF_ERROR(ReadToolChoice(fields));
  if (fields.Find("chat_template") != nullptr) {
    return FieldError("chat_template",
                      "chat_template is not accepted with a request: the model's own is used.");
  }
  ChatOptions options;
  options.continue_final_message = fields.Bool("continue_final_message").value_or(false);
  options.add_generation_prompt = fields.Bool("add_generation_prompt").value_or(true);
  TAOPD_RETURN_IF_ERROR(fields.error());
  if (model.tokenizer == nullptr || model.chat_template == nullptr) {
    return FieldError(
        "messages",
        "The model has no chat template or no tokenizer.json: send token ids to /v1/completions.");
  }
  ordered_json messages = fields.Take("messages");
  if (messages.is_null()) return MissingField("messages");
  TAOPD_RETURN_IF_ERROR(NormalizeMessages(model.chat_template->takes_parts(), &messages));
  options.tools = fields.Take("tools");
  options.documents = fields.Take("documents");
  options.kwargs = fields.Take("chat_template_kwargs");
  if (options.kwargs.is_null()) options.kwargs = ordered_json::object();
  if (!options.kwargs.is_object()) return WrongType("chat_template_kwargs", "a valid dictionary");
  TAOPD_RETURN_IF_ERROR(ReadReasoningEffort(fields, &options.kwargs));
  const auto rendering = model.chat_template->Render(messages, options);
  if (!rendering.ok()) {
    return FieldError("messages", Excerpt(std::string(rendering.status().message())));
  }
  return RenderedChat{rendering->text, messages.back()["role"].get<std::string>(),
                      ContentText(messages.back()), std::move(options.tools)};
}

absl::Status ReadChatRequest(JsonFields& fields, const ServedModel& model, ChatRequest* request) {
  TAOPD_RETURN_IF_ERROR(ReadEnvelope(fields, model, request));
  TAOPD_RETURN_IF_ERROR(ReadSampling(fields, model.sampling_defaults, model, request));
  bool echo = false;
  TAOPD_RETURN_IF_ERROR(ReadReports(fields, model, &echo, request));
  TAOPD_RETURN_IF_ERROR(ReadTruncation(fields, request));
  const bool add_special_tokens = fields.Bool("add_special_tokens").value_or(false);
  const bool new_message = fields.Bool("add_generation_prompt").value_or(true);
  absl::StatusOr<RenderedChat> rendered = RenderChat(fields, model);
  TAOPD_RETURN_IF_ERROR(fields.error());
  TAOPD_ASSIGN_OR_RETURN(RenderedChat chat, std::move(rendered));
  TAOPD_RETURN_IF_ERROR(AddPromptText(chat.text, add_special_tokens, "messages", model, request));
  TAOPD_RETURN_IF_ERROR(ReadToolCalls(fields, chat.tools, model, request));
  TAOPD_RETURN_IF_ERROR(fields.error());
  request->prompt_text = std::move(chat.text);
  request->role = new_message ? "assistant" : chat.last_role;
  if (echo && chat.last_role == request->role) request->echoed_text = std::move(chat.last_text);
  return FinishPrompts(model, /*echo_only=*/false, request);
}

}  // namespace taopd
