#include "server/http/chat/chat.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/io/jsonl.h"
#include "server/generation/prompts.h"
#include "server/generation/request_fields.h"
#include "server/http/http_error.h"
#include "server/http/request/common_fields.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxRoleBytes = 256;
// The limit of the arguments of all calls together, since each text is parsed again.
constexpr size_t kMaxArgumentsBytes = size_t{4} << 20;

absl::Status ReadPart(const ordered_json& part, const std::string& where, std::string* text) {
  if (!part.is_object()) return WrongType(where, "a valid dictionary");
  const std::string type =
      part.contains("type") && part["type"].is_string() ? part["type"].get<std::string>() : "text";
  const char* key = type == "refusal" ? "refusal" : "text";
  if (type != "text" && type != "refusal" && type != "input_text" && type != "output_text") {
    return FieldError("messages", where, " has the type \"", Excerpt(type),
                      "\": the model reads text only.");
  }
  if (!part.contains(key) || !part[key].is_string())
    return WrongType(where + "." + key, "a valid string");
  *text = part[key].get<std::string>();
  return absl::OkStatus();
}

absl::Status NormalizeContent(bool as_parts, const std::string& where, ordered_json* message) {
  ordered_json parts = ordered_json::array();
  std::string joined;
  const auto add = [&](const std::string& text) {
    if (!parts.empty()) joined += '\n';
    joined += text;
    parts.push_back({{"type", "text"}, {"text", text}});
  };
  const ordered_json content = message->value("content", ordered_json());
  if (content.is_string()) {
    add(content.get<std::string>());
  } else if (content.is_array()) {
    for (size_t i = 0; i < content.size(); ++i) {
      std::string text;
      TAOPD_RETURN_IF_ERROR(ReadPart(content[i], Concat(where, ".content.", i), &text));
      add(text);
    }
  } else if (!content.is_null()) {
    return WrongType(where + ".content", "a valid string");
  }
  (*message)["content"] = as_parts ? std::move(parts) : ordered_json(std::move(joined));
  return absl::OkStatus();
}

// Parses the arguments of tool calls. Their texts may have `bytes_left` more bytes together.
absl::Status NormalizeToolCalls(const std::string& where, size_t* bytes_left,
                                ordered_json* message) {
  if (!message->contains("tool_calls") || (*message)["tool_calls"].is_null())
    return absl::OkStatus();
  ordered_json& calls = (*message)["tool_calls"];
  if (!calls.is_array()) return WrongType(where + ".tool_calls", "a valid list");
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = Concat(where, ".tool_calls.", i, ".function");
    if (!calls[i].is_object() || !calls[i].contains("function") ||
        !calls[i]["function"].is_object()) {
      return WrongType(name, "a valid dictionary");
    }
    ordered_json& function = calls[i]["function"];
    const ordered_json arguments = function.value("arguments", ordered_json());
    if (arguments.is_object()) continue;
    if (!arguments.is_null() && !arguments.is_string())
      return WrongType(name + ".arguments", "a valid string");
    const std::string text = arguments.is_string() ? arguments.get<std::string>() : "";
    if (text.empty()) {
      function["arguments"] = ordered_json::object();
      continue;
    }
    if (text.size() > *bytes_left) {
      return FieldError("messages", "the arguments of all tool_calls have more than the limit of ",
                        kMaxArgumentsBytes, " bytes.");
    }
    *bytes_left -= text.size();
    auto parsed = ParseOrderedJson(text, name + ".arguments");
    if (!parsed.ok())
      return FieldStatus("messages", Excerpt(std::string(parsed.status().message())));
    function["arguments"] = *std::move(parsed);
  }
  return absl::OkStatus();
}

void NormalizeReasoning(ordered_json* message) {
  const ordered_json reasoning = message->value("reasoning", ordered_json());
  const ordered_json content = message->value("reasoning_content", ordered_json());
  if (reasoning.is_null() && content.is_null()) return;
  const ordered_json both = reasoning.is_null() ? content : reasoning;
  (*message)["reasoning"] = both;
  (*message)["reasoning_content"] = both;
}

// Returns the text of a message's content after NormalizeMessages.
std::string ContentText(const ordered_json& message) {
  const ordered_json& content = message.at("content");
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const ordered_json& part : content) {
    if (!text.empty()) text += '\n';
    text += part.at("text").get<std::string>();
  }
  return text;
}

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

absl::Status ReadChatReports(JsonFields& fields, const ServedModel& model, bool* echo,
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
  return ReadScoring(fields, model, /*streams_start=*/false, request);
}

}  // namespace

absl::Status NormalizeMessages(bool as_parts, ordered_json* messages) {
  if (!messages->is_array()) return WrongType("messages", "a valid list");
  if (messages->empty()) {
    return FieldError(
        "messages",
        "Cannot apply chat template to an empty conversation. Provide at least one message.");
  }
  size_t bytes_left = kMaxArgumentsBytes;
  for (size_t i = 0; i < messages->size(); ++i) {
    ordered_json& message = (*messages)[i];
    const std::string where = Concat("messages.", i);
    if (!message.is_object()) return WrongType(where, "a valid dictionary");
    if (!message.contains("role") || !message["role"].is_string())
      return WrongType(where + ".role", "a valid string");
    if (message["role"].get_ref<const std::string&>().size() > kMaxRoleBytes)
      return WrongType(where + ".role", Concat("a string of at most ", kMaxRoleBytes, " bytes"));
    TAOPD_RETURN_IF_ERROR(NormalizeContent(as_parts, where, &message));
    TAOPD_RETURN_IF_ERROR(NormalizeToolCalls(where, &bytes_left, &message));
    NormalizeReasoning(&message);
  }
  return absl::OkStatus();
}

absl::StatusOr<RenderedChat> RenderChat(JsonFields& fields, const ServedModel& model) {
  TAOPD_RETURN_IF_ERROR(ReadToolChoice(fields));
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
  TAOPD_RETURN_IF_ERROR(ReadChatReports(fields, model, &echo, request));
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
