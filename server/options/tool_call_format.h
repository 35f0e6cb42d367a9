// The format in which a model writes tool calls into its text (`--tool-call-parser`, as in vLLM).
#pragma once

#include "common/config/settings.h"

namespace taopd {

enum class ToolCallFormat {
  kNone,        // calls stay in the text
  kHermes,      // Qwen's: <tool_call>{"name": .., "arguments": {..}}</tool_call>
  kLlama3Json,  // {"name": .., "parameters": {..}}; {..}, perhaps after <|python_tag|>
};
inline EnumNames<ToolCallFormat> NamesOf(ToolCallFormat) {
  return {{ToolCallFormat::kNone, "none"},
          {ToolCallFormat::kHermes, "hermes"},
          {ToolCallFormat::kLlama3Json, "llama3_json"}};
}

}  // namespace taopd
