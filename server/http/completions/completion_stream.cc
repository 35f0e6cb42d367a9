#include "server/http/completions/completion_stream.h"

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

    std::string out = frame_.head() + "{\"index\":" + std::to_string(i) + ",\"text\":";
    AppendJsonString(text, &out);
    out += ",\"logprobs\":";
    TAOPD_RETURN_IF_ERROR(AppendLogprobs(update, echoes, &out));
    out += ",\"finish_reason\":";
    if (!update.is_last) {
      out += "null,\"stop_reason\":null";
    } else if (hide_generated) {
      out += "\"length\",\"stop_reason\":null";
    } else {
      out += Concat("\"", FinishReasonName(update.tokens.finish), "\",\"stop_reason\":",
                    StopReasonJson(update.tokens, choice.stop_string(), request_));
    }
    out += ",\"prompt_token_ids\":";
    AppendIdsIf(is_first && (request_.echo || request_.return_token_ids), prompt.token_ids, &out);
    out += ",\"token_ids\":";
    AppendIdsIf(request_.return_token_ids, update.tokens.ids, &out);
    out += "}]";
    if (request_.continuous_usage) {
      out += ",\"usage\":";
      AppendUsage(static_cast<int64_t>(prompt.token_ids.size()), choice.num_generated(),
                  /*with_details=*/false, &out);
    }
    return out + frame_.Tail(update.is_last);
  }

  std::string UsageChunk() const { return frame_.UsageChunk(choices_); }

 private:
  absl::Status AppendLogprobs(const ChoiceUpdate& update, bool echoes, std::string* out) {
    if (!request_.logprobs) {
      *out += "null";
      return absl::OkStatus();
    }
    const StreamedChoice& choice = choices_[update.choice];
    const GenerationPrompt& prompt = request_.PromptOf(update.choice);
    std::vector<Position> positions;
    if (echoes) {
      const size_t prompt_index = update.choice / static_cast<size_t>(request_.n);
      positions = PromptPositions(prompt.token_ids, request_.scoring.start, scores_[prompt_index]);
    }
    if (request_.max_tokens > 0) {
      for (Position& position : GeneratedPositions(update.tokens, *request_.logprobs))
        positions.push_back(std::move(position));
    }
    TAOPD_RETURN_IF_ERROR(CheckNumbers(positions));
    const size_t first = echoes ? 0 : choice.ids().size() - update.tokens.ids.size();
    AppendCompletionLogprobs(choice.ids(), first, positions, *request_.logprobs, named_,
                             &text_offsets_[update.choice], out);
    return absl::OkStatus();
  }

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
  const auto chunk = [&](const ChoiceUpdate& update) { return writer.Chunk(update); };
  if (!StreamUpdates(generation, chunk, send)) return;
  if (request.include_usage && !send(Event(writer.UsageChunk()))) return;
  send(kLastEvent);
}

}  // namespace taopd
