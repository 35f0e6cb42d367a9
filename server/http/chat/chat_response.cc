#include "server/http/chat/chat_response.h"

#include <utility>

#include "server/generation/generated_text.h"
#include "server/http/chat/tool_calls.h"
#include "server/http/generation/chunk_frame.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/token_text.h"

namespace taopd {
namespace {

void AppendToolCalls(const std::vector<ToolCall>& calls, std::string* out) {
  for (size_t i = 0; i < calls.size(); ++i) {
    *out += Concat(i == 0 ? "\"tool_calls\":[" : ",", "{\"id\":\"", NewToolCallId(),
                   "\",\"type\":\"function\",\"function\":{\"name\":", JsonString(calls[i].name),
                   ",\"arguments\":", JsonString(calls[i].arguments), "}}");
  }
  *out += "],";
}

absl::Status AppendChoice(const ChatRequest& request, const ServedModel& model, size_t index,
                          const GeneratedTokens& generated, TokenText& tokens, std::string* out) {
  const GeneratedText text = FinishedText(generated, model.tokenizer.get(), request);
  const bool forced = request.forced_calls != ForcedCalls::kNone;
  SplitAnswer answer =
      forced ? SplitForcedCalls(request.forced_calls, request.forced_function, text.text())
             : SplitToolCalls(request.tool_calls, text.text());
  if (!request.parallel_tool_calls && answer.calls.size() > 1) answer.calls.resize(1);
  const bool has_content = answer.content || !request.echoed_text.empty();
  *out += Concat(
      "{\"index\":", index, ",\"message\":{\"role\":", JsonString(request.role), ",\"content\":",
      has_content ? JsonString(request.echoed_text + answer.content.value_or("")) : "null");
  *out += ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,";
  if (!answer.calls.empty()) AppendToolCalls(answer.calls, out);
  *out += "\"reasoning\":null},\"logprobs\":";
  std::vector<int32_t> ids = request.prompts[0].token_ids;
  ids.insert(ids.end(), generated.ids.begin(), generated.ids.end());
  TAOPD_RETURN_IF_ERROR(AppendChatLogprobs(request, ids, generated, tokens, out));
  // As in vLLM: a forced list counts as calls if it is complete, a named function never.
  const bool called =
      forced ? request.forced_calls == ForcedCalls::kList && generated.finish == FinishReason::kStop
             : !answer.calls.empty();
  *out +=
      Concat(",\"finish_reason\":\"", called ? "tool_calls" : FinishReasonName(generated.finish),
             "\",\"stop_reason\":", StopReasonJson(generated, text.stop_string(), request),
             ",\"token_ids\":", IdsJson(generated.ids, request.return_token_ids),
             ",\"routed_experts\":null}");
  return absl::OkStatus();
}

}  // namespace

std::string PromptTextJson(const ChatRequest& request) {
  return request.return_prompt_text ? JsonString(request.prompt_text) : "null";
}

absl::StatusOr<std::string> ChatResponseJson(const ChatRequest& request, const ServedModel& model,
                                             const std::vector<InferenceResult>& results,
                                             int64_t created_unix_s) {
  TokenText named(model.tokenizer.get(), request.return_tokens_as_token_ids);
  TokenText plain(model.tokenizer.get(), /*as_token_ids=*/false);
  std::string out = AnswerHead("chatcmpl-", "chat.completion", request, created_unix_s);
  int64_t num_generated_tokens = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) out += ',';
    const GeneratedTokens& generated = *results[i].generated;
    TAOPD_RETURN_IF_ERROR(AppendChoice(request, model, i, generated, named, &out));
    num_generated_tokens += static_cast<int64_t>(generated.ids.size());
  }
  out += "],\"service_tier\":null,\"system_fingerprint\":" + SystemFingerprintJson(model) +
         ",\"usage\":" +
         UsageJson(request.NumPromptTokens(), num_generated_tokens, /*with_details=*/true) +
         ",\"prompt_logprobs\":";
  const GenerationPrompt& prompt = request.prompts[0];
  TAOPD_RETURN_IF_ERROR(AppendPromptLogprobs(request, prompt, results[0].score, plain, &out));
  out += ",\"prompt_token_ids\":" + IdsJson(prompt.token_ids, request.return_token_ids) +
         ",\"prompt_text\":" + PromptTextJson(request) +
         ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null";
  if (request.scoring.num_candidates > 0 && !request.scoring.compact) {
    out += ",\"prompt_token_id_logprobs\":";
    AppendCandidateLogprobs(request, prompt, results[0].score, &out);
  }
  return out + "}";
}

}  // namespace taopd
