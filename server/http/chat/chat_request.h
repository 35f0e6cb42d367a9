// The body of POST /v1/chat/completions, as vLLM defines it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>

#include "server/generation/generation_request.h"
#include "server/http/chat/forced_calls.h"
#include "server/http/http_error.h"
#include "server/http/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

struct ChatRequest : GenerationRequest {
  std::string role;         // role of the answer's message
  std::string echoed_text;  // text in front of the answer's text
  std::string prompt_text;  // the rendered conversation
  bool return_prompt_text = false;
  // The format of tool calls, which are taken out of the answer's text; kNone leaves them there.
  ToolCallFormat tool_calls = ToolCallFormat::kNone;
  // All of the text is calls, because the request says so.
  ForcedCalls forced_calls = ForcedCalls::kNone;
  std::string forced_function;      // name of the function, for ForcedCalls::kFunction
  bool parallel_tool_calls = true;  // false: the first call alone is answered
};

// Reads and checks a body, renders its messages with the model's chat template and tokenizes the
// text. Any thread may call; calls beyond a few at once wait (ReadBody).
absl::StatusOr<ChatRequest> ParseChatRequest(const std::string& body, const ServedModel& model);

// A body with a conversation. It is parsed once, with the keys in the order of the text, as the
// chat template sees them.
struct ChatBody {
  nlohmann::ordered_json ordered;
  // For JsonFields: the same without what only the template reads, which is `true` there.
  nlohmann::json fields;
};
absl::StatusOr<ChatBody> ParseChatBody(const std::string& body);

// Does the same as ParseChatRequest for a body that is parsed already. Takes `ordered` apart.
absl::Status ReadChatRequest(JsonFields& fields, nlohmann::ordered_json* ordered,
                             const ServedModel& model, ChatRequest* request);

// A conversation after its chat template was applied.
struct RenderedChat {
  std::string text;
  std::string last_role;
  std::string last_text;
  nlohmann::ordered_json tools;  // with keys in the order of the request; null if there are none
};

// Reads messages, tools and the options of the chat template, which it takes out of `ordered`, and
// renders them. Shared with /tokenize.
absl::StatusOr<RenderedChat> RenderChat(JsonFields& fields, nlohmann::ordered_json* ordered,
                                        const ServedModel& model);

}  // namespace taopd
