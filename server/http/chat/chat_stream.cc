#include <string>
#include <utility>
#include <vector>

#include "server/http/chat/chat_response.h"
#include "server/http/chat/tool_calls.h"
#include "server/http/generation/chunk_frame.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/token_text.h"

namespace taopd {
namespace {

class ChatChunks {
 public:
  ChatChunks(const ChatRequest& request, const ServedModel& model, int64_t created_unix_s)
      : request_(request),
        model_(model),
        named_(model.tokenizer.get(), request.return_tokens_as_token_ids),
        frame_("chatcmpl-", "chat.completion.chunk", request, model, created_unix_s) {
    for (size_t i = 0; i < request.NumChoices(); ++i) {
      choices_.emplace_back(model.tokenizer.get(), request, request.prompts[0].token_ids);
      calls_.emplace_back(request.tool_calls);
      forced_calls_.emplace_back(request.forced_calls, request.forced_function);
    }
  }

  // The chunk that opens a choice.
  std::string Role(size_t index) const {
    return Concat(
        frame_.head(), "{\"index\":", index, ",\"delta\":{\"role\":", JsonString(request_.role),
        ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]", ContinuousUsage(0),
        ",\"prompt_token_ids\":", IdsJson(request_.prompts[0].token_ids, request_.return_token_ids),
        ",\"prompt_text\":", PromptTextJson(request_), "}");
  }

  std::string Echo(size_t index) const {
    return Concat(frame_.head(), "{\"index\":", index,
                  ",\"delta\":{\"content\":", JsonString(request_.echoed_text),
                  "},\"logprobs\":null,\"finish_reason\":null}]", ContinuousUsage(0), "}");
  }

  // Returns an empty text if there is nothing to say.
  absl::StatusOr<std::string> Chunk(const ChoiceUpdate& update) {
    StreamedChoice& choice = choices_[update.choice];
    const std::string text = choice.Add(update);
    std::string out = frame_.head() + Concat("{\"index\":", update.choice, ",\"delta\":{");
    const bool says_something = AppendDelta(update, text, &out);
    if (!says_something && !update.is_last && !request_.logprobs && !request_.return_token_ids)
      return std::string();
    out += "},\"logprobs\":";
    TAOPD_RETURN_IF_ERROR(AppendChatLogprobs(request_, choice.ids(), update.tokens, named_, &out));
    if (update.is_last) {
      const bool has_calls = request_.forced_calls == ForcedCalls::kNone
                                 ? calls_[update.choice].has_calls()
                                 : request_.forced_calls == ForcedCalls::kList &&
                                       forced_calls_[update.choice].has_calls();
      const bool called = has_calls && update.tokens.finish == FinishReason::kStop;
      out += Concat(
          ",\"finish_reason\":\"", called ? "tool_calls" : FinishReasonName(update.tokens.finish),
          "\",\"stop_reason\":", StopReasonJson(update.tokens, choice.stop_string(), request_));
    } else {
      out += ",\"finish_reason\":null";
    }
    return out + ",\"token_ids\":" + IdsJson(update.tokens.ids, request_.return_token_ids) + "}]" +
           ContinuousUsage(choice.num_generated()) + frame_.Tail(update.is_last);
  }

  std::string UsageChunk() const { return frame_.UsageChunk(choices_); }

 private:
  // The inside of "delta". False if it is empty.
  bool AppendDelta(const ChoiceUpdate& update, const std::string& text, std::string* out) {
    const bool forced = request_.forced_calls != ForcedCalls::kNone;
    if (!forced && request_.tool_calls == ToolCallFormat::kNone) {
      *out += "\"content\":" + JsonString(text);
      return true;
    }
    AnswerDelta delta = forced ? forced_calls_[update.choice].Push(text)
                               : calls_[update.choice].Push(text, update.is_last);
    if (!request_.parallel_tool_calls)
      std::erase_if(delta.calls, [](const ToolCallDelta& call) { return call.index > 0; });
    if (!delta.content.empty()) *out += "\"content\":" + JsonString(delta.content);
    for (size_t i = 0; i < delta.calls.size(); ++i) {
      const ToolCallDelta& call = delta.calls[i];
      if (i == 0) *out += delta.content.empty() ? "\"tool_calls\":[" : ",\"tool_calls\":[";
      *out += i == 0 ? "{" : ",{";
      if (call.name) *out += Concat("\"id\":\"", NewToolCallId(), "\",\"type\":\"function\",");
      *out +=
          Concat("\"index\":", call.index, ",\"function\":{\"", call.name ? "name" : "arguments",
                 "\":", JsonString(call.name ? *call.name : call.arguments), "}}");
    }
    if (!delta.calls.empty()) *out += "]";
    return !delta.empty();
  }

  std::string ContinuousUsage(int64_t num_generated) const {
    if (!request_.continuous_usage) return "";
    std::string usage =
        UsageJson(request_.NumPromptTokens(), num_generated, /*with_details=*/false);
    usage.insert(usage.size() - 1, ",\"completion_tokens_details\":null");  // only chats have it
    return ",\"usage\":" + usage;
  }

  const ChatRequest& request_;
  const ServedModel& model_;
  TokenText named_;
  const ChunkFrame frame_;
  std::vector<StreamedChoice> choices_;
  std::vector<ToolCallStream> calls_;  // one per choice
  std::vector<ForcedCallStream> forced_calls_;
};

}  // namespace

void StreamChat(const ChatRequest& request, const ServedModel& model, const PromptScores&,
                int64_t created_unix_s, Generation* generation, const SendPiece& send) {
  ChatChunks chunks(request, model, created_unix_s);
  for (size_t i = 0; i < request.NumChoices(); ++i) {
    if (!send(Event(chunks.Role(i)))) return;
  }
  for (size_t i = 0; i < request.NumChoices() && !request.echoed_text.empty(); ++i) {
    if (!send(Event(chunks.Echo(i)))) return;
  }
  StreamUpdates(
      request, generation, [&](const ChoiceUpdate& update) { return chunks.Chunk(update); },
      [&] { return chunks.UsageChunk(); }, send);
}

}  // namespace taopd
