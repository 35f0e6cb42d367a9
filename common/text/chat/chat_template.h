// Messages as the text that a model was trained on, exactly as transformers' apply_chat_template
// renders it, and as its ids.
//
//   TAOPD_ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Load(model_dir));
//   ChatOptions options;
//   options.add_generation_prompt = true;
//   options.kwargs["enable_thinking"] = false;
//   TAOPD_ASSIGN_OR_RETURN(const auto ids, chat.RenderToIds(messages, options, *tokenizer));
//
// The template is untrusted: its size, steps, output and memory are limited (jinja/limits.h).
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/text/jinja/template.h"
#include "common/text/tokenizer/tokenizer.h"
#include "common/text/tokenizer/tokenizer_config.h"

namespace taopd {

struct ChatOptions {
  // End with what begins the assistant's turn.
  bool add_generation_prompt = false;
  // End inside the last message, for the model to go on with; not with add_generation_prompt.
  bool continue_final_message = false;
  nlohmann::ordered_json tools;      // a list of JSON schemas; null: none
  nlohmann::ordered_json documents;  // a list of objects; null: none
  // More variables of the template, e.g. enable_thinking; they replace special tokens of the same
  // name.
  nlohmann::ordered_json kwargs = nlohmann::ordered_json::object();
  // Of several templates; empty: "tool_use" with tools where there is one, else "default".
  std::string template_name;
  // What strftime_now shows.
  jinja::RenderOptions clock;
};

// Immutable; any thread may render, several at once.
class ChatTemplate {
 public:
  // Of a model directory (tokenizer_config.h says from which files). NOT_FOUND when it has none;
  // INVALID_ARGUMENT with line and column for a template that cannot be parsed.
  static absl::StatusOr<ChatTemplate> Load(const std::string& model_dir);
  static absl::StatusOr<ChatTemplate> FromConfig(const TokenizerConfig& config);

  // `messages`: an array of objects, e.g. {"role": "user", "content": "..."}; keys stay in order.
  // Errors say which message or which line of the template.
  absl::StatusOr<jinja::Rendering> Render(const nlohmann::ordered_json& messages,
                                          const ChatOptions& options) const;
  // The text's ids, without what the tokenizer puts around a text: a template writes its own BOS.
  // Special tokens that a message spells are taken for special tokens, as transformers does.
  absl::StatusOr<std::vector<int32_t>> RenderToIds(const nlohmann::ordered_json& messages,
                                                   const ChatOptions& options,
                                                   const Tokenizer& tokenizer) const;

 private:
  ChatTemplate() = default;
  absl::StatusOr<const jinja::Template*> Choose(const ChatOptions& options) const;

  std::map<std::string, jinja::Template> templates_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
};

}  // namespace taopd
