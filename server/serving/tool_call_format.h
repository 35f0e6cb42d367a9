// The format in which a model writes tool calls into its text.
#pragma once

#include <optional>
#include <string_view>

namespace taopd {

enum class ToolCallFormat {
  kNone,        // calls stay in the text
  kHermes,      // <tool_call>{"name": .., "arguments": {..}}</tool_call>, as of Qwen
  kLlama3Json,  // {"name": .., "parameters": {..}}; {..}, perhaps behind <|python_tag|>
};

// Parses vLLM's names of its parsers ("hermes", "llama3_json") and "none".
inline std::optional<ToolCallFormat> ToolCallFormatOf(std::string_view name) {
  if (name == "none") return ToolCallFormat::kNone;
  if (name == "hermes") return ToolCallFormat::kHermes;
  if (name == "llama3_json") return ToolCallFormat::kLlama3Json;
  return std::nullopt;
}

}  // namespace taopd
