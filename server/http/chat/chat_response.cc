#include "server/http/chat/chat_response.h"

#include <utility>

#include "server/generation/generated_text.h"
#include "server/http/chat/tool_calls.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/token_text.h"

namespace taopd {
namespace {

// `ids` are prompt and generated tokens.
absl::Status AppendLogprobs(const ChatRequest& request, const std::vector<int32_t>& ids,
                            const GeneratedTokens& generated, TokenText& tokens, std::string* out) {
  if (!request.logprobs) {
    *out += "null";
    return absl::OkStatus();
  }
  const std::vector<Position> positions = GeneratedPositions(generated, *request.logprobs);
  TAOPD_RETURN_IF_ERROR(CheckNumbers(positions));
  AppendChatLogprobs(ids, ids.size() - generated.ids.size(), positions, *request.logprobs, tokens,
                     out);
  return absl::OkStatus();
}

void AppendToolCalls(const std::vector<ToolCall>& calls, std::string* out) {
  for (size_t i = 0; i < calls.size(); ++i) {
    *out += i == 0 ? "\"tool_calls\":[" : ",";
    *out +=
        Concat("{\"id\":\"", NewToolCallId(), "\",\"type\":\"function\",\"function\":{\"name\":");
    AppendJsonString(calls[i].name, out);
    *out += ",\"arguments\":";
    AppendJsonString(calls[i].arguments, out);
    *out += "}}";
  }
  *out += "],";
}

absl::Status AppendChoice(const ChatRequest& request, const ServedModel& model, size_t index,
                          const GeneratedTokens& generated, TokenText& tokens, std::string* out) {
  const GeneratedText text = FinishedText(generated, model.tokenizer.get(), request);
  *out += "{\"index\":" + std::to_string(index) + ",\"message\":{\"role\":";
  AppendJsonString(request.role, out);
  const bool forced = request.forced_calls != ForcedCalls::kNone;
  SplitAnswer answer =
      forced ? SplitForcedCalls(request.forced_calls, request.forced_function, text.text())
             : SplitToolCalls(request.tool_calls, text.text());
  if (!request.parallel_tool_calls && answer.calls.size() > 1) answer.calls.resize(1);
  *out += ",\"content\":";
  if (answer.content || !request.echoed_text.empty()) {
    AppendJsonString(request.echoed_text + answer.content.value_or(""), out);
  } else {
    *out += "null";
  }
  *out += ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,";
  if (!answer.calls.empty()) AppendToolCalls(answer.calls, out);
  *out += "\"reasoning\":null},\"logprobs\":";
  std::vector<int32_t> ids = request.prompts[0].token_ids;
  ids.insert(ids.end(), generated.ids.begin(), generated.ids.end());
  TAOPD_RETURN_IF_ERROR(AppendLogprobs(request, ids, generated, tokens, out));
  // As in vLLM: a forced list counts as calls if it is complete, a named function never.
  const bool called =
      forced ? request.forced_calls == ForcedCalls::kList && generated.finish == FinishReason::kStop
             : !answer.calls.empty();
  *out +=
      Concat(",\"finish_reason\":\"", called ? "tool_calls" : FinishReasonName(generated.finish),
             "\",\"stop_reason\":", StopReasonJson(generated, text.stop_string(), request),
             ",\"token_ids\":");
  AppendIdsIf(request.return_token_ids, generated.ids, out);
  *out += ",\"routed_experts\":null}";
  return absl::OkStatus();
}

void AppendPromptText(const ChatRequest& request, std::string* out) {
  *out += ",\"prompt_text\":";
  if (request.return_prompt_text) {
    AppendJsonString(request.prompt_text, out);
  } else {
    *out += "null";
  }
}

}  // namespace

absl::StatusOr<std::string> ChatResponseJson(const ChatRequest& request, const ServedModel& model,
                                             const std::vector<InferenceResult>& results,
                                             int64_t created_unix_s) {
  TokenText named(model.tokenizer.get(), request.return_tokens_as_token_ids);
  TokenText plain(model.tokenizer.get(), /*as_token_ids=*/false);
  std::string out = "{\"id\":";
  AppendJsonString("chatcmpl-" + request.request_id, &out);
  out += Concat(",\"object\":\"chat.completion\",\"created\":", created_unix_s, ",\"model\":");
  AppendJsonString(request.model, &out);
  out += ",\"choices\":[";
  int64_t num_generated_tokens = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) out += ',';
    const GeneratedTokens& generated = *results[i].generated;
    TAOPD_RETURN_IF_ERROR(AppendChoice(request, model, i, generated, named, &out));
    num_generated_tokens += static_cast<int64_t>(generated.ids.size());
  }
  out += "],\"service_tier\":null,\"system_fingerprint\":" + SystemFingerprintJson(model) +
         ",\"usage\":";
  AppendUsage(request.NumPromptTokens(), num_generated_tokens, /*with_details=*/true, &out);
  const GenerationPrompt& prompt = request.prompts[0];
  out += ",\"prompt_logprobs\":";
  TAOPD_RETURN_IF_ERROR(AppendPromptLogprobs(request, prompt, results[0].score, plain, &out));
  out += ",\"prompt_token_ids\":";
  AppendIdsIf(request.return_token_ids, prompt.token_ids, &out);
  AppendPromptText(request, &out);
  out += ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null";
  if (request.scoring.num_candidates > 0 && !request.scoring.compact) {
    out += ",\"prompt_token_id_logprobs\":";
    AppendCandidateLogprobs(request, prompt, results[0].score, &out);
  }
  return out + "}";
}

}  // namespace taopd
