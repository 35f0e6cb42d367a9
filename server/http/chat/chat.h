// POST /v1/chat/completions, as vLLM defines it: the body, and the answers with vLLM's keys in
// vLLM's order.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/generation/generation.h"
#include "server/generation/generation_request.h"
#include "server/http/chat/tool_calls.h"
#include "server/http/request/json_fields.h"
#include "server/http/response/answer.h"
#include "server/serving/serving_state.h"

namespace taopd {

struct ChatRequest : GenerationRequest {
  std::string role;         // role of the answer's message
  std::string echoed_text;  // text in front of the answer's text
  std::string prompt_text;  // the rendered conversation
  bool return_prompt_text = false;
  // The format of tool calls, which are taken out of the answer's text; kNone leaves them there.
  ToolCallFormat tool_calls = ToolCallFormat::kNone;
  // kNone unless tool_choice demands that all of the text is calls.
  ForcedCalls forced_calls = ForcedCalls::kNone;
  std::string forced_function;      // name of the function, for ForcedCalls::kFunction
  bool parallel_tool_calls = true;  // if false, only the first call is returned
};

// These three functions are explained in protocols.h. Messages are rendered with the model's chat
// template, and the text is tokenized.
absl::Status ReadChatRequest(JsonFields& fields, const ServedModel& model, ChatRequest* request);
absl::StatusOr<std::string> ChatResponseJson(const ChatRequest& request, const ServedModel& model,
                                             const std::vector<InferenceResult>& results);
void StreamChat(const ChatRequest& request, const ServedModel& model, const PromptScores& scores,
                Generation* generation, const SendPiece& send);

// A conversation after its chat template was applied.
struct RenderedChat {
  std::string text;
  std::string last_role;
  std::string last_text;
  nlohmann::ordered_json tools;  // with keys in the order of the request; null if there are none
};

// Takes messages, tools and the options of the chat template out of the body and renders them.
// Shared with /tokenize.
absl::StatusOr<RenderedChat> RenderChat(JsonFields& fields, const ServedModel& model);

// Checks the messages and changes them as vLLM does:
// - the content becomes a text, the parts of a list joined by line feeds; or, if `as_parts`, a
//   list of parts {"type":"text","text":..}, for templates that loop over it;
// - the arguments of tool calls, which are JSON texts, become values;
// - "reasoning" and "reasoning_content" are the same.
// Returns INVALID_ARGUMENT naming the message if it is malformed.
absl::Status NormalizeMessages(bool as_parts, nlohmann::ordered_json* messages);

// Checks tools and tool_choice, with vLLM's messages.
absl::Status ReadToolChoice(JsonFields& fields);

// Applies the choice to the request. If it forces a call, the text must match the schema that vLLM
// makes of the tools, instead of what the request prescribes. `tools` have their keys
// in the order of the request. Call it after ReadToolChoice has accepted the choice.
absl::Status ReadToolCalls(JsonFields& fields, const nlohmann::ordered_json& tools,
                           const ServedModel& model, ChatRequest* request);

}  // namespace taopd
