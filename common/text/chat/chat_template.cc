#include "common/text/chat/chat_template.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "common/text/jinja/values/python_text.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

// A marker after the last message's text, which shows where that ends in the rendered text.
// transformers uses the same marker: the space shows whether the template trims messages.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

absl::Status CheckMessages(const ordered_json& messages) {
  if (!messages.is_array()) return InvalidArgument("messages is not an array");
  if (messages.empty()) return InvalidArgument("messages is empty");
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) return InvalidArgument("messages[", i, "] is not an object");
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const ChatOptions& options) {
  if (options.continue_final_message && options.add_generation_prompt) {
    return InvalidArgument("continue_final_message and add_generation_prompt exclude each other");
  }
  for (const auto& [name, list] :
       {std::pair("tools", &options.tools), {"documents", &options.documents}}) {
    if (list->is_null()) continue;
    if (!list->is_array()) return InvalidArgument(name, " is not an array");
    for (const ordered_json& entry : *list) {
      if (!entry.is_object()) return InvalidArgument(name, " holds an entry that is not an object");
    }
  }
  if (!options.kwargs.is_object()) return InvalidArgument("kwargs is not an object");
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"}) {
    if (options.kwargs.contains(name)) return InvalidArgument("kwargs holds \"", name, "\"");
  }
  return absl::OkStatus();
}

// Returns the text of the last message, for appending to it, or null if there is none.
ordered_json* FinalText(ordered_json* messages) {
  ordered_json& last = messages->back();
  if (!last.contains("content")) return nullptr;
  ordered_json& content = last["content"];
  if (content.is_string()) return &content;
  if (!content.is_array()) return nullptr;
  for (auto block = content.rbegin(); block != content.rend(); ++block) {
    if (block->is_object() && block->contains("text") && (*block)["text"].is_string()) {
      return &(*block)["text"];
    }
  }
  return nullptr;
}

// Returns whether the text at `at` names the content of a message: message.content,
// message['content'] or a variable named content.
bool NamesContent(std::string_view source, size_t at) {
  constexpr std::string_view kContent = "content";
  const auto is_word = [&](size_t i) {
    return i < source.size() &&
           (std::isalnum(static_cast<unsigned char>(source[i])) != 0 || source[i] == '_');
  };
  const auto ends_word = [&](size_t i) { return !is_word(i) && source.substr(i, 1) != "("; };
  const size_t begin = at;
  while (is_word(at)) ++at;
  const std::string_view variable = source.substr(begin, at - begin);
  const std::string_view rest = source.substr(std::min(at, source.size()));
  if (rest.starts_with(".content")) return ends_word(at + 1 + kContent.size());
  if (rest.starts_with("['content']") || rest.starts_with("[\"content\"]")) return true;
  return variable == kContent && !rest.starts_with('.') && !rest.starts_with('[') && ends_word(at);
}

// Returns whether a template loops over the content of a message: {% for part in message.content
// %}.
bool LoopsOverContent(std::string_view source) {
  constexpr std::string_view kIn = " in ";
  for (size_t in = source.find(kIn); in != std::string_view::npos; in = source.find(kIn, in + 1)) {
    const size_t variable = source.find_last_of(" \n\t", in - 1);
    if (in == 0 || variable == std::string_view::npos) continue;
    const std::string_view before = jinja::StripRight(source.substr(0, variable));
    if (!before.ends_with("for")) continue;
    const size_t from = source.find_first_not_of(' ', in + kIn.size());
    if (from != std::string_view::npos && NamesContent(source, from)) return true;
  }
  return false;
}

// Cuts the text where the last message ends.
absl::Status CutAtTag(std::string_view message, std::string* text) {
  using jinja::Strip;
  const size_t at = text->rfind(Strip(kContinueTag));
  if (at == std::string::npos || text->find(Strip(message)) == std::string::npos) {
    return InvalidArgument(
        "continue_final_message: the template does not show the last message as it is");
  }
  if (std::string_view(*text).substr(at).starts_with(kContinueTag)) {
    text->resize(at);
  } else {
    *text = std::string(jinja::StripRight(std::string_view(*text).substr(0, at)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Load(const std::string& model_dir) {
  TAOPD_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(model_dir));
  return Annotate(FromConfig(config), model_dir);
}

absl::StatusOr<ChatTemplate> ChatTemplate::FromConfig(const TokenizerConfig& config) {
  if (config.chat_templates.empty()) return NotFound("no chat template");
  ChatTemplate chat;
  chat.special_tokens_ = config.special_tokens;
  for (const auto& [name, source] : config.chat_templates) {
    TAOPD_ASSIGN_OR_RETURN(
        jinja::Template parsed,
        Annotate(jinja::Template::Parse(source), Concat("chat template \"", name, "\"")));
    chat.templates_.emplace(name, std::move(parsed));
    if (name == "default") chat.takes_parts_ = LoopsOverContent(source);
  }
  return chat;
}

absl::StatusOr<const jinja::Template*> ChatTemplate::Choose(const ChatOptions& options) const {
  std::string name = options.template_name;
  if (name.empty()) {
    const bool has_tool_use = !options.tools.is_null() && templates_.contains("tool_use");
    name = has_tool_use ? "tool_use" : "default";
  }
  const auto found = templates_.find(name);
  if (found != templates_.end()) return &found->second;
  std::string known;
  for (const auto& [other, parsed] : templates_) known += Concat(known.empty() ? "" : ", ", other);
  return InvalidArgument("no chat template named \"", name, "\"; there are: ", known);
}

absl::StatusOr<jinja::Rendering> ChatTemplate::Render(const ordered_json& messages,
                                                      const ChatOptions& options) const {
  TAOPD_RETURN_IF_ERROR(CheckMessages(messages));
  TAOPD_RETURN_IF_ERROR(CheckOptions(options));
  TAOPD_ASSIGN_OR_RETURN(const jinja::Template* chosen, Choose(options));
  ordered_json context = ordered_json::object();
  for (const auto& [name, text] : special_tokens_) context[name] = text;
  for (const auto& [name, value] : options.kwargs.items()) context[name] = value;
  context["messages"] = messages;
  context["tools"] = options.tools;
  context["documents"] = options.documents;
  context["add_generation_prompt"] = options.add_generation_prompt;
  std::string final_text;
  if (options.continue_final_message) {
    ordered_json* text = FinalText(&context["messages"]);
    if (text == nullptr) {
      return InvalidArgument("continue_final_message: the last message has no text to continue");
    }
    final_text = text->get<std::string>();
    *text = final_text + std::string(kContinueTag);
  }
  TAOPD_ASSIGN_OR_RETURN(jinja::Rendering rendering, chosen->Render(context, options.clock));
  if (options.continue_final_message) {
    TAOPD_RETURN_IF_ERROR(CutAtTag(final_text, &rendering.text));
  }
  return rendering;
}

}  // namespace taopd
