#include "server/http/chat/chat_request.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/io/jsonl.h"
#include "server/generation/prompts.h"
#include "server/http/chat/chat_messages.h"
#include "server/http/chat/tool_choice.h"
#include "server/http/generation/prompts.h"
#include "server/http/generation/request_body.h"
#include "server/http/generation/sampling_request.h"
#include "server/http/structured/structured_output.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

std::optional<HttpError> ReadReasoningEffort(JsonFields& fields, ordered_json* kwargs) {
  const std::optional<std::string> effort = fields.Text("reasoning_effort");
  if (!effort) return std::nullopt;
  static const std::set<std::string> kEfforts = {"none", "minimal", "low", "medium",
                                                 "high", "xhigh",   "max"};
  if (!kEfforts.contains(*effort)) {
    return WrongType("reasoning_effort",
                     "'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'");
  }
  (*kwargs)["reasoning_effort"] = *effort;
  if (!kwargs->contains("enable_thinking")) (*kwargs)["enable_thinking"] = *effort != "none";
  return std::nullopt;
}

std::optional<HttpError> RefuseOtherInputs(JsonFields& fields) {
  if (fields.Find("chat_template") != nullptr) {
    return BadField("chat_template",
                    "chat_template is not accepted with a request: the model's own is used. "
                    "(parameter=chat_template)");
  }
  for (const char* name : {"mm_processor_kwargs", "media_io_kwargs"}) {
    const nlohmann::json* value = fields.Find(name);
    if (value != nullptr && !value->empty()) {
      return BadField(
          name,
          Concat(name, " is not supported: the model reads text only. (parameter=", name, ")"));
    }
  }
  return std::nullopt;
}

std::optional<HttpError> ReadReports(JsonFields& fields, const ServedModel& model, bool* echo,
                                     ChatRequest* request) {
  *echo = fields.Bool("echo").value_or(false);
  const std::optional<int64_t> max_tokens = fields.ClampedInteger("max_tokens");
  const std::optional<int64_t> max_completion_tokens =
      fields.ClampedInteger("max_completion_tokens");
  request->max_tokens =
      max_completion_tokens ? *max_completion_tokens : max_tokens.value_or(INT64_MAX);
  if (request->max_tokens < 1) {
    return BadField("max_tokens",
                    Concat("max_tokens must be at least 1, got ", request->max_tokens,
                           ". (parameter=max_tokens, value=", request->max_tokens, ")"));
  }
  request->return_tokens_as_token_ids = fields.Bool("return_tokens_as_token_ids").value_or(false);
  request->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  request->return_prompt_text = fields.Bool("return_prompt_text").value_or(false);
  std::optional<int32_t> top_logprobs;
  if (auto error = ReadLogprobs(fields, "top_logprobs", "sample", model, &top_logprobs))
    return error;
  const bool wants_logprobs = fields.Bool("logprobs").value_or(false);
  if (top_logprobs.value_or(0) > 0 && !wants_logprobs) {
    return BadField("top_logprobs",
                    "when using `top_logprobs`, `logprobs` must be set to true. "
                    "(parameter=top_logprobs)");
  }
  if (wants_logprobs) request->logprobs = top_logprobs.value_or(0);
  if (auto error =
          ReadLogprobs(fields, "prompt_logprobs", "prompt", model, &request->prompt_logprobs)) {
    return error;
  }
  if (request->stream && request->prompt_logprobs.value_or(0) != 0) {
    return BadField("prompt_logprobs",
                    "`prompt_logprobs` are not available when `stream=True`. "
                    "(parameter=prompt_logprobs)");
  }
  if (*echo && !request->prompt_logprobs) request->prompt_logprobs = top_logprobs.value_or(0);
  return ReadScoring(fields, model, request);
}

}  // namespace

std::variant<RenderedChat, HttpError> RenderChat(JsonFields& fields, const std::string& body,
                                                 const ServedModel& model) {
  if (auto error = ReadToolChoice(fields)) return *std::move(error);
  if (auto error = RefuseOtherInputs(fields)) return *std::move(error);
  for (const char* name : {"messages", "tools", "documents", "chat_template_kwargs"})
    fields.Find(name);
  ChatOptions options;
  options.continue_final_message = fields.Bool("continue_final_message").value_or(false);
  options.add_generation_prompt = fields.Bool("add_generation_prompt").value_or(true);
  if (fields.error()) return *fields.error();
  if (model.tokenizer == nullptr || model.chat_template == nullptr) {
    return BadField("messages",
                    "The model has no chat template or no tokenizer.json: send token ids to "
                    "/v1/completions. (parameter=messages)");
  }
  // Templates see the keys in the order of the request.
  auto ordered = ParseOrderedJson(body, "body", kMaxBodyValueBytes);
  if (!ordered.ok()) return BadRequest(Excerpt(std::string(ordered.status().message())));
  if (!ordered->contains("messages")) {
    return HttpError{
        400, "Bad Request", "body.messages",
        "1 validation error:\n  {'loc': ('body', 'messages'), 'msg': 'Field required'}"};
  }
  ordered_json messages = std::move((*ordered)["messages"]);
  if (auto error = NormalizeMessages(model.chat_template->takes_parts(), &messages))
    return *std::move(error);
  options.tools = ordered->value("tools", ordered_json());
  options.documents = ordered->value("documents", ordered_json());
  options.kwargs = ordered->value("chat_template_kwargs", ordered_json());
  if (options.kwargs.is_null()) options.kwargs = ordered_json::object();
  if (!options.kwargs.is_object()) return WrongType("chat_template_kwargs", "a valid dictionary");
  if (auto error = ReadReasoningEffort(fields, &options.kwargs)) return *std::move(error);
  const auto rendering = model.chat_template->Render(messages, options);
  if (!rendering.ok()) {
    return BadField("messages", Concat(Excerpt(std::string(rendering.status().message())),
                                       " (parameter=messages)"));
  }
  return RenderedChat{rendering->text, messages.back()["role"].get<std::string>(),
                      ContentText(messages.back()), std::move(options.tools)};
}

std::optional<HttpError> ReadChatRequest(JsonFields& fields, const std::string& body,
                                         const ServedModel& model, ChatRequest* request) {
  if (auto error = ReadEnvelope(fields, model, request)) return error;
  if (auto error = ReadSampling(fields, model.sampling_defaults, model, request)) return error;
  bool echo = false;
  if (auto error = ReadReports(fields, model, &echo, request)) return error;
  if (auto error = ReadTruncation(fields, request)) return error;
  const bool add_special_tokens = fields.Bool("add_special_tokens").value_or(false);
  const bool new_message = fields.Bool("add_generation_prompt").value_or(true);
  fields.Bool("include_reasoning");  // of a parser that this server does not have
  auto rendered = RenderChat(fields, body, model);
  if (fields.error()) return fields.error();
  if (HttpError* error = std::get_if<HttpError>(&rendered)) return std::move(*error);
  RenderedChat& chat = std::get<RenderedChat>(rendered);
  if (auto error =
          ErrorOf(AddPromptText(chat.text, add_special_tokens, "messages", model, request))) {
    return error;
  }
  if (auto error = ReadToolCalls(fields, chat.tools, model, request)) return error;
  if (auto error = FinishStructuredOutput(body, {}, request)) return error;
  if (fields.error()) return fields.error();
  request->prompt_text = std::move(chat.text);
  request->role = new_message ? "assistant" : chat.last_role;
  if (echo && chat.last_role == request->role) request->echoed_text = std::move(chat.last_text);
  return FinishPrompts(model, /*echo_only=*/false, request);
}

std::variant<ChatRequest, HttpError> ParseChatRequest(const std::string& body,
                                                      const ServedModel& model) {
  ChatRequest request;
  auto error = ReadBody(body, [&](const nlohmann::json& json) {
    JsonFields fields(json);
    auto refused = ReadChatRequest(fields, body, model, &request);
    if (!refused) fields.LogUnknown("/v1/chat/completions");
    return refused;
  });
  if (error) return *std::move(error);
  return request;
}

}  // namespace taopd
