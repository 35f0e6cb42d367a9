#include "server/http/completions/completion_response.h"

#include <optional>
#include <utility>

#include "server/generation/generated_text.h"
#include "server/http/generation/chunk_frame.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/token_text.h"

namespace taopd {
namespace {

class ChoiceWriter {
 public:
  ChoiceWriter(const CompletionRequest& request, const ServedModel& model)
      : request_(request),
        tokenizer_(model.tokenizer.get()),
        plain_(tokenizer_, /*as_token_ids=*/false),
        named_(tokenizer_, request.return_tokens_as_token_ids) {}

  // `rows` are those of the choice's prompt.
  absl::Status Append(size_t index, const std::optional<ScoreRows>& rows,
                      const GeneratedTokens& generated, std::string* out) {
    const GenerationPrompt& prompt = request_.PromptOf(index);
    const bool hide_generated = request_.max_tokens == 0;
    std::string text = EchoedText(request_, prompt, tokenizer_);
    std::optional<size_t> stop_string;
    if (tokenizer_ != nullptr && !hide_generated) {
      const GeneratedText finished = FinishedText(generated, tokenizer_, request_);
      text += finished.text();
      stop_string = finished.stop_string();
    }
    *out += Concat("{\"index\":", index, ",\"text\":", JsonString(text), ",\"logprobs\":");
    std::vector<int32_t> ids;
    if (request_.logprobs) ids = prompt.token_ids;
    ids.insert(ids.end(), generated.ids.begin(), generated.ids.end());
    int64_t text_offset = 0;
    TAOPD_RETURN_IF_ERROR(AppendLogprobs(request_, prompt, request_.echo ? &rows : nullptr, ids,
                                         generated, named_, &text_offset, out));
    *out += Concat(",\"finish_reason\":\"",
                   hide_generated ? "length" : FinishReasonName(generated.finish),
                   "\",\"stop_reason\":",
                   hide_generated ? "null" : StopReasonJson(generated, stop_string, request_),
                   ",\"token_ids\":", IdsJson(generated.ids, request_.return_token_ids),
                   ",\"prompt_logprobs\":");
    TAOPD_RETURN_IF_ERROR(AppendPromptLogprobs(request_, prompt, rows, plain_, out));
    *out += ",\"prompt_token_ids\":" + IdsJson(prompt.token_ids, request_.return_token_ids) +
            ",\"routed_experts\":null";
    if (request_.scoring.num_candidates > 0 && !request_.scoring.compact) {
      *out += ",\"prompt_token_id_logprobs\":";
      AppendCandidateLogprobs(request_, prompt, rows, out);
    }
    *out += '}';
    return absl::OkStatus();
  }

 private:
  const CompletionRequest& request_;
  const Tokenizer* const tokenizer_;
  TokenText plain_;  // decoded_token
  TokenText named_;  // the logprobs object
};

}  // namespace

absl::Status AppendLogprobs(const CompletionRequest& request, const GenerationPrompt& prompt,
                            const std::optional<ScoreRows>* echoed_rows,
                            const std::vector<int32_t>& ids, const GeneratedTokens& generated,
                            TokenText& tokens, int64_t* text_offset, std::string* out) {
  if (!request.logprobs) {
    *out += "null";
    return absl::OkStatus();
  }
  std::vector<Position> positions;
  if (echoed_rows != nullptr)
    positions = PromptPositions(prompt.token_ids, request.scoring.start, *echoed_rows);
  if (request.max_tokens > 0) {
    for (Position& position : GeneratedPositions(generated, *request.logprobs))
      positions.push_back(std::move(position));
  }
  TAOPD_RETURN_IF_ERROR(CheckNumbers(positions));
  const size_t first = echoed_rows != nullptr ? 0 : ids.size() - generated.ids.size();
  AppendCompletionLogprobs(ids, first, positions, *request.logprobs, tokens, text_offset, out);
  return absl::OkStatus();
}

std::string EchoedText(const CompletionRequest& request, const GenerationPrompt& prompt,
                       const Tokenizer* tokenizer) {
  if (tokenizer == nullptr || !request.echo || request.return_token_ids) return "";
  // Special tokens of a prompt are shown, whatever skip_special_tokens says, as vLLM does.
  return prompt.text ? *prompt.text
                     : tokenizer->Decode(prompt.token_ids, /*skip_special_tokens=*/false);
}

absl::StatusOr<std::string> CompletionResponseJson(const CompletionRequest& request,
                                                   const ServedModel& model,
                                                   const std::vector<InferenceResult>& results,
                                                   int64_t created_unix_s) {
  std::string out = AnswerHead("cmpl-", "text_completion", request, created_unix_s);
  ChoiceWriter choices(request, model);
  int64_t num_generated_tokens = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) out += ',';
    const size_t first = i - i % static_cast<size_t>(request.n);
    TAOPD_RETURN_IF_ERROR(choices.Append(i, results[first].score, *results[i].generated, &out));
    num_generated_tokens += static_cast<int64_t>(results[i].generated->ids.size());
  }
  return out + "],\"service_tier\":null,\"system_fingerprint\":" + SystemFingerprintJson(model) +
         ",\"usage\":" +
         UsageJson(request.NumPromptTokens(), num_generated_tokens, /*with_details=*/true) +
         ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}";
}

}  // namespace taopd
