// Renders messages as the text that a model was trained on, exactly as transformers'
// apply_chat_template does.
//
//   TAOPD_ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::Load(model_dir));
//   ChatOptions options;
//   options.add_generation_prompt = true;
//   options.kwargs["enable_thinking"] = false;
//   TAOPD_ASSIGN_OR_RETURN(const auto rendering, chat.Render(messages, options));
//   const std::vector<int32_t> ids = tokenizer->Encode(rendering.text);
//
// The ids are those of transformers. The template writes its own BOS, so Encode must not add
// special tokens. Special tokens that are spelled out in a message become special tokens.
//
// The template is not trusted: its size, steps, output and memory are limited (jinja/limits.h).
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/text/jinja/template.h"
#include "common/text/tokenizer/tokenizer_config.h"

namespace taopd {

struct ChatOptions {
  // Whether to end with the beginning of the assistant's turn.
  bool add_generation_prompt = false;
  // Whether to end inside the last message, so that the model continues it. Excludes
  // add_generation_prompt.
  bool continue_final_message = false;
  nlohmann::ordered_json tools;      // a list of JSON schemas, or null
  nlohmann::ordered_json documents;  // a list of objects, or null
  // Further variables of the template, e.g. enable_thinking. They replace special tokens of the
  // same name.
  nlohmann::ordered_json kwargs = nlohmann::ordered_json::object();
  // The name of the template to use. If empty, "tool_use" if there are tools and such a template
  // exists, otherwise "default".
  std::string template_name;
  // The time that strftime_now shows.
  jinja::RenderOptions clock;
};

// Immutable and thread-safe.
class ChatTemplate {
 public:
  // Reads the templates of a model directory (tokenizer_config.h lists the files). Returns
  // NOT_FOUND if there is none, and INVALID_ARGUMENT with line and column if a template cannot be
  // parsed.
  static absl::StatusOr<ChatTemplate> Load(const std::string& model_dir);
  static absl::StatusOr<ChatTemplate> FromConfig(const TokenizerConfig& config);

  // `messages` is an array of objects such as {"role": "user", "content": "..."}, whose keys keep
  // their order. Errors name the message or the line of the template.
  absl::StatusOr<jinja::Rendering> Render(const nlohmann::ordered_json& messages,
                                          const ChatOptions& options) const;

  // Returns whether the default template loops over the content of a message, and therefore expects
  // a list of parts {"type": "text", "text": ...} instead of a text.
  bool takes_parts() const { return takes_parts_; }

 private:
  ChatTemplate() = default;
  absl::StatusOr<const jinja::Template*> Choose(const ChatOptions& options) const;

  std::map<std::string, jinja::Template> templates_;
  bool takes_parts_ = false;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
};

}  // namespace taopd
