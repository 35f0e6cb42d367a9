#include "server/http/chat/chat.h"

#include "server/generation/generated_text.h"
#include "server/http/chat/tool_calls.h"
#include "server/http/response/answer_json.h"
#include "server/http/response/chunk_frame.h"
#include "server/http/response/token_text.h"

namespace taopd {
namespace {

// Returns the value of "prompt_text".
std::string PromptTextJson(const ChatRequest& request) {
  return request.return_prompt_text ? JsonText(request.prompt_text) : "null";
}

void AppendToolCalls(const std::vector<ToolCall>& calls, std::string* out) {
  for (size_t i = 0; i < calls.size(); ++i) {
    *out += Concat(i == 0 ? "\"tool_calls\":[" : ",", "{\"id\":\"", NewToolCallId(),
                   "\",\"type\":\"function\",\"function\":{\"name\":", JsonText(calls[i].name),
                   ",\"arguments\":", JsonText(calls[i].arguments), "}}");
  }
  *out += "],";
}

absl::Status AppendChatChoice(const ChatRequest& request, const ServedModel& model, size_t index,
                              const GeneratedTokens& generated, TokenText& tokens,
                              std::string* out) {
  StreamedChoice choice(model.tokenizer.get(), request, request.prompts[0].token_ids);
  const std::string text = choice.Add(generated, /*is_last=*/true);
  const bool forced = request.forced_calls != ForcedCalls::kNone;
  SplitAnswer answer = forced
                           ? SplitForcedCalls(request.forced_calls, request.forced_function, text)
                           : SplitToolCalls(request.tool_calls, text);
  if (!request.parallel_tool_calls && answer.calls.size() > 1) answer.calls.resize(1);
  const bool has_content = answer.content || !request.echoed_text.empty();
  *out += Concat(
      "{\"index\":", index, ",\"message\":{\"role\":", JsonText(request.role), ",\"content\":",
      has_content ? JsonText(request.echoed_text + answer.content.value_or("")) : "null");
  *out += ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,";
  if (!answer.calls.empty()) AppendToolCalls(answer.calls, out);
  *out += "\"reasoning\":null},\"logprobs\":";
  TAOPD_RETURN_IF_ERROR(AppendChatLogprobs(request, choice.ids(), generated, tokens, out));
  // As in vLLM, a forced list counts as calls only if it is complete. A named function never does.
  const bool called =
      forced ? request.forced_calls == ForcedCalls::kList && generated.finish == FinishReason::kStop
             : !answer.calls.empty();
  *out +=
      Concat(",\"finish_reason\":\"", called ? "tool_calls" : FinishReasonName(generated.finish),
             "\",\"stop_reason\":", StopReasonJson(generated, choice.stop_string(), request),
             ",\"token_ids\":", IdsJson(generated.ids, request.return_token_ids),
             ",\"routed_experts\":null}");
  return absl::OkStatus();
}

class ChatChunks {
 public:
  ChatChunks(const ChatRequest& request, const ServedModel& model)
      : request_(request),
        token_names_(model.tokenizer.get(), request.return_tokens_as_token_ids),
        frame_("chatcmpl-", "chat.completion.chunk", request, model) {
    for (size_t i = 0; i < request.NumChoices(); ++i) {
      choices_.emplace_back(model.tokenizer.get(), request, request.prompts[0].token_ids);
      calls_.emplace_back(request.tool_calls);
      forced_calls_.emplace_back(request.forced_calls, request.forced_function);
    }
  }

  // Returns the chunk that opens a choice.
  std::string Role(size_t index) const {
    return Concat(
        frame_.head(), "{\"index\":", index, ",\"delta\":{\"role\":", JsonText(request_.role),
        ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]", ContinuousUsage(0),
        ",\"prompt_token_ids\":", IdsJson(request_.prompts[0].token_ids, request_.return_token_ids),
        ",\"prompt_text\":", PromptTextJson(request_), "}");
  }

  std::string Echo(size_t index) const {
    return Concat(frame_.head(), "{\"index\":", index,
                  ",\"delta\":{\"content\":", JsonText(request_.echoed_text),
                  "},\"logprobs\":null,\"finish_reason\":null}]", ContinuousUsage(0), "}");
  }

  // Returns an empty text if there is nothing to say.
  absl::StatusOr<std::string> Chunk(const ChoiceUpdate& update) {
    StreamedChoice& choice = choices_[update.choice];
    const std::string text = choice.Add(update.tokens, update.is_last);
    std::string out = frame_.head() + Concat("{\"index\":", update.choice, ",\"delta\":{");
    const bool says_something = AppendDelta(update, text, &out);
    if (!says_something && !update.is_last && !request_.logprobs && !request_.return_token_ids)
      return std::string();
    out += "},\"logprobs\":";
    TAOPD_RETURN_IF_ERROR(
        AppendChatLogprobs(request_, choice.ids(), update.tokens, token_names_, &out));
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
  // Appends the inside of "delta". Returns false if it is empty.
  bool AppendDelta(const ChoiceUpdate& update, const std::string& text, std::string* out) {
    const bool forced = request_.forced_calls != ForcedCalls::kNone;
    if (!forced && request_.tool_calls == ToolCallFormat::kNone) {
      *out += "\"content\":" + JsonText(text);
      return true;
    }
    AnswerDelta delta = forced ? forced_calls_[update.choice].Push(text)
                               : calls_[update.choice].Push(text, update.is_last);
    if (!request_.parallel_tool_calls)
      std::erase_if(delta.calls, [](const ToolCallDelta& call) { return call.index > 0; });
    if (!delta.content.empty()) *out += "\"content\":" + JsonText(delta.content);
    for (size_t i = 0; i < delta.calls.size(); ++i) {
      const ToolCallDelta& call = delta.calls[i];
      if (i == 0) *out += delta.content.empty() ? "\"tool_calls\":[" : ",\"tool_calls\":[";
      *out += i == 0 ? "{" : ",{";
      if (call.name) *out += Concat("\"id\":\"", NewToolCallId(), "\",\"type\":\"function\",");
      *out +=
          Concat("\"index\":", call.index, ",\"function\":{\"", call.name ? "name" : "arguments",
                 "\":", JsonText(call.name ? *call.name : call.arguments), "}}");
    }
    if (!delta.calls.empty()) *out += "]";
    return !delta.empty();
  }

  std::string ContinuousUsage(int64_t num_generated) const {
    if (!request_.continuous_usage) return "";
    return ",\"usage\":" +
           UsageJson(request_.NumPromptTokens(), num_generated, UsageDetails::kCompletion);
  }

  const ChatRequest& request_;
  TokenText token_names_;
  const ChunkFrame frame_;
  std::vector<StreamedChoice> choices_;
  std::vector<ToolCallStream> calls_;  // one per choice
  std::vector<ForcedCallStream> forced_calls_;
};

}  // namespace

absl::StatusOr<std::string> ChatResponseJson(const ChatRequest& request, const ServedModel& model,
                                             const std::vector<InferenceResult>& results) {
  TokenText token_names(model.tokenizer.get(), request.return_tokens_as_token_ids);
  TokenText token_texts(model.tokenizer.get(), /*as_token_ids=*/false);
  std::string out = AnswerHead("chatcmpl-", "chat.completion", request);
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) out += ',';
    TAOPD_RETURN_IF_ERROR(
        AppendChatChoice(request, model, i, *results[i].generated, token_names, &out));
  }
  out += "],\"service_tier\":null,\"system_fingerprint\":" + SystemFingerprintJson(model) +
         ",\"usage\":" + UsageJson(request, results) + ",\"prompt_logprobs\":";
  const GenerationPrompt& prompt = request.prompts[0];
  TAOPD_RETURN_IF_ERROR(AppendPromptLogprobs(request, prompt, results[0].score, token_texts, &out));
  out += ",\"prompt_token_ids\":" + IdsJson(prompt.token_ids, request.return_token_ids) +
         ",\"prompt_text\":" + PromptTextJson(request) +
         ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null";
  AppendCandidateLogprobs(request, prompt, results[0].score, &out);
  return out + "}";
}

void StreamChat(const ChatRequest& request, const ServedModel& model, const PromptScores&,
                Generation* generation, const SendPiece& send) {
  ChatChunks chunks(request, model);
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
