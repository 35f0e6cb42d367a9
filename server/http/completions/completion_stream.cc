// POST /v1/completions with stream: chunks in vLLM's shape, one for each update of a choice.

#include <string>
#include <utility>

#include "server/http/completions/completion_response.h"
#include "server/http/generation/chunk_frame.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/token_text.h"

namespace taopd {
namespace {

class ChunkWriter {
 public:
  ChunkWriter(const CompletionRequest& request, const ServedModel& model,
              const PromptScores& scores, int64_t created_unix_s)
      : request_(request),
        model_(model),
        scores_(scores),
        named_(model.tokenizer.get(), request.return_tokens_as_token_ids),
        frame_("cmpl-", "text_completion", request, model, created_unix_s) {
    for (size_t i = 0; i < request.NumChoices(); ++i)
      choices_.emplace_back(model.tokenizer.get(), request, request.PromptOf(i).token_ids);
    text_offsets_.resize(choices_.size());
  }

  absl::StatusOr<std::string> Chunk(const ChoiceUpdate& update) {
    const size_t i = update.choice;
    const GenerationPrompt& prompt = request_.PromptOf(i);
    StreamedChoice& choice = choices_[i];
    const bool is_first = choice.num_generated() == 0;
    const bool echoes = is_first && request_.echo;
    const bool hide_generated = request_.max_tokens == 0;
    std::string text = echoes ? EchoedText(request_, prompt, model_.tokenizer.get()) : "";
    const std::string new_text = choice.Add(update);
    if (!hide_generated) text += new_text;

    std::string out =
        Concat(frame_.head(), "{\"index\":", i, ",\"text\":", JsonString(text), ",\"logprobs\":");
    const std::optional<ScoreRows>* rows =
        echoes && request_.logprobs ? &scores_[i / static_cast<size_t>(request_.n)] : nullptr;
    TAOPD_RETURN_IF_ERROR(AppendLogprobs(request_, prompt, rows, choice.ids(), update.tokens,
                                         named_, &text_offsets_[i], &out));
    out += ",\"finish_reason\":";
    if (!update.is_last) {
      out += "null,\"stop_reason\":null";
    } else if (hide_generated) {
      out += "\"length\",\"stop_reason\":null";
    } else {
      out += Concat("\"", FinishReasonName(update.tokens.finish), "\",\"stop_reason\":",
                    StopReasonJson(update.tokens, choice.stop_string(), request_));
    }
    const bool shows_prompt = is_first && (request_.echo || request_.return_token_ids);
    out += ",\"prompt_token_ids\":" + IdsJson(prompt.token_ids, shows_prompt) +
           ",\"token_ids\":" + IdsJson(update.tokens.ids, request_.return_token_ids) + "}]";
    if (request_.continuous_usage) {
      out += ",\"usage\":" + UsageJson(static_cast<int64_t>(prompt.token_ids.size()),
                                       choice.num_generated(), /*with_details=*/false);
    }
    return out + frame_.Tail(update.is_last);
  }

  std::string UsageChunk() const { return frame_.UsageChunk(choices_); }

 private:
  const CompletionRequest& request_;
  const ServedModel& model_;
  const PromptScores& scores_;
  TokenText named_;
  const ChunkFrame frame_;
  std::vector<StreamedChoice> choices_;
  std::vector<int64_t> text_offsets_;
};

}  // namespace

void StreamCompletion(const CompletionRequest& request, const ServedModel& model,
                      const PromptScores& scores, int64_t created_unix_s, Generation* generation,
                      const SendPiece& send) {
  ChunkWriter writer(request, model, scores, created_unix_s);
  StreamUpdates(
      request, generation, [&](const ChoiceUpdate& update) { return writer.Chunk(update); },
      [&] { return writer.UsageChunk(); }, send);
}

}  // namespace taopd
