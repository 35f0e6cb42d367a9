#include "server/http/protocols/protocols.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/generation/generated_text.h"
#include "server/generation/prompts.h"
#include "server/generation/request_fields.h"
#include "server/http/request/common_fields.h"
#include "server/http/response/answer_json.h"
#include "server/http/response/chunk_frame.h"
#include "server/http/response/token_text.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxPrompts = 1024;  // vLLM's VLLM_MAX_COMPLETION_PROMPTS
constexpr char kPrompt[] = "prompt";

absl::Status ReadPrompts(JsonFields& fields, const ServedModel& model, CompletionRequest* request) {
  const ordered_json* prompt = fields.Find(kPrompt);
  const bool add_special_tokens = fields.Bool("add_special_tokens").value_or(true);
  if (prompt == nullptr || (prompt->is_string() && prompt->get_ref<const std::string&>().empty())) {
    return FieldError(kPrompt, "Either prompt or prompt_embeds must be provided and non-empty.");
  }
  if (prompt->is_string()) {
    return AddPromptText(prompt->get_ref<const std::string&>(), add_special_tokens, kPrompt, model,
                         request);
  }
  if (!prompt->is_array())
    return WrongType(kPrompt, "a text, a list of texts or a list of token ids");
  if (prompt->empty()) return InvalidArgument("You must pass at least one prompt");
  if (prompt->front().is_number()) return AddPromptIds(*prompt, kPrompt, model, request);
  if (prompt->size() > kMaxPrompts) {
    return FieldError(kPrompt, "prompt list length ", prompt->size(),
                      " exceeds the maximum allowed count of ", kMaxPrompts, ".");
  }
  const bool are_texts = prompt->front().is_string();
  for (const ordered_json& item : *prompt) {
    if (are_texts ? !item.is_string() : !item.is_array()) {
      return WrongType(kPrompt, "a list of texts or a list of lists of token ids");
    }
    TAOPD_RETURN_IF_ERROR(are_texts ? AddPromptText(item.get_ref<const std::string&>(),
                                                    add_special_tokens, kPrompt, model, request)
                                    : AddPromptIds(item, kPrompt, model, request));
  }
  return absl::OkStatus();
}

absl::Status ReadReports(JsonFields& fields, const ServedModel& model, CompletionRequest* request) {
  request->echo = fields.Bool("echo").value_or(false);
  request->max_tokens = fields.ClampedInteger("max_tokens").value_or(16);
  const bool only_echoes = request->max_tokens == 0 && request->echo;
  if (!only_echoes) TAOPD_RETURN_IF_ERROR(CheckMaxTokens(request->max_tokens));
  request->return_tokens_as_token_ids = fields.Bool("return_tokens_as_token_ids").value_or(false);
  request->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  TAOPD_RETURN_IF_ERROR(ReadLogprobs(fields, "logprobs", "sample", model, &request->logprobs));
  TAOPD_RETURN_IF_ERROR(ReadPromptLogprobs(fields, model, request));
  if (request->echo && !request->prompt_logprobs) request->prompt_logprobs = request->logprobs;
  const bool streams_start = request->echo && request->logprobs;
  return ReadScoring(fields, model, streams_start, request);
}

// Appends the `logprobs` object of the tokens that `generated` holds, which are the last of `ids`;
// null if no log-probs were asked for. If `echoed_rows` is not null, those of the prompt come
// first. `text_offset` is that of AppendCompletionLogprobs. Returns INTERNAL if a log-prob is NaN
// or +inf.
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

// Returns the text of a choice's prompt as echo repeats it; empty where echo shows no text.
std::string EchoedText(const CompletionRequest& request, const GenerationPrompt& prompt,
                       const Tokenizer* tokenizer) {
  if (tokenizer == nullptr || !request.echo || request.return_token_ids) return "";
  // Special tokens of a prompt are shown, whatever skip_special_tokens says, as vLLM does.
  return prompt.text ? *prompt.text
                     : tokenizer->Decode(prompt.token_ids, /*skip_special_tokens=*/false);
}

class ChoiceWriter {
 public:
  ChoiceWriter(const CompletionRequest& request, const ServedModel& model)
      : request_(request),
        tokenizer_(model.tokenizer.get()),
        token_texts_(tokenizer_, /*as_token_ids=*/false),
        token_names_(tokenizer_, request.return_tokens_as_token_ids) {}

  // Appends a choice. `rows` are those of its prompt.
  absl::Status Append(size_t index, const std::optional<ScoreRows>& rows,
                      const GeneratedTokens& generated, std::string* out) {
    const GenerationPrompt& prompt = request_.PromptOf(index);
    const bool hide_generated = request_.max_tokens == 0;
    StreamedChoice choice(hide_generated ? nullptr : tokenizer_, request_,
                          request_.logprobs ? prompt.token_ids : std::vector<int32_t>());
    std::string text = EchoedText(request_, prompt, tokenizer_);
    text += choice.Add(generated, /*is_last=*/true);
    *out += Concat("{\"index\":", index, ",\"text\":", JsonText(text), ",\"logprobs\":");
    int64_t text_offset = 0;
    TAOPD_RETURN_IF_ERROR(AppendLogprobs(request_, prompt, request_.echo ? &rows : nullptr,
                                         choice.ids(), generated, token_names_, &text_offset, out));
    *out += Concat(
        ",\"finish_reason\":\"", hide_generated ? "length" : FinishReasonName(generated.finish),
        "\",\"stop_reason\":",
        hide_generated ? "null" : StopReasonJson(generated, choice.stop_string(), request_),
        ",\"token_ids\":", IdsJson(generated.ids, request_.return_token_ids),
        ",\"prompt_logprobs\":");
    TAOPD_RETURN_IF_ERROR(AppendPromptLogprobs(request_, prompt, rows, token_texts_, out));
    *out += ",\"prompt_token_ids\":" + IdsJson(prompt.token_ids, request_.return_token_ids) +
            ",\"routed_experts\":null";
    AppendCandidateLogprobs(request_, prompt, rows, out);
    *out += '}';
    return absl::OkStatus();
  }

 private:
  const CompletionRequest& request_;
  const Tokenizer* const tokenizer_;
  TokenText token_texts_;  // for decoded_token
  TokenText token_names_;  // for the logprobs object
};

// The chunks of a stream, one for each update of a choice.
class CompletionChunks {
 public:
  CompletionChunks(const CompletionRequest& request, const ServedModel& model,
                   const PromptScores& scores)
      : request_(request),
        model_(model),
        scores_(scores),
        token_names_(model.tokenizer.get(), request.return_tokens_as_token_ids),
        frame_("cmpl-", "text_completion", request, model) {
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
    const std::string new_text = choice.Add(update.tokens, update.is_last);
    if (!hide_generated) text += new_text;

    std::string out =
        Concat(frame_.head(), "{\"index\":", i, ",\"text\":", JsonText(text), ",\"logprobs\":");
    const std::optional<ScoreRows>* rows =
        echoes && request_.logprobs ? &scores_[i / static_cast<size_t>(request_.n)] : nullptr;
    TAOPD_RETURN_IF_ERROR(AppendLogprobs(request_, prompt, rows, choice.ids(), update.tokens,
                                         token_names_, &text_offsets_[i], &out));
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
                                       choice.num_generated(), UsageDetails::kNone);
    }
    return out + frame_.Tail(update.is_last);
  }

  std::string UsageChunk() const { return frame_.UsageChunk(choices_); }

 private:
  const CompletionRequest& request_;
  const ServedModel& model_;
  const PromptScores& scores_;
  TokenText token_names_;
  const ChunkFrame frame_;
  std::vector<StreamedChoice> choices_;
  std::vector<int64_t> text_offsets_;
};

}  // namespace

absl::Status ReadCompletionRequest(JsonFields& fields, const ServedModel& model,
                                   CompletionRequest* request) {
  TAOPD_RETURN_IF_ERROR(ReadEnvelope(fields, model, request));
  TAOPD_RETURN_IF_ERROR(ReadSampling(fields, model.sampling_defaults, model, request));
  TAOPD_RETURN_IF_ERROR(ReadReports(fields, model, request));
  TAOPD_RETURN_IF_ERROR(ReadTruncation(fields, request));
  TAOPD_RETURN_IF_ERROR(fields.error());
  TAOPD_RETURN_IF_ERROR(ReadPrompts(fields, model, request));
  TAOPD_RETURN_IF_ERROR(fields.error());
  return FinishPrompts(model, /*echo_only=*/request->max_tokens == 0, request);
}

absl::StatusOr<std::string> CompletionResponseJson(const CompletionRequest& request,
                                                   const ServedModel& model,
                                                   const std::vector<InferenceResult>& results) {
  std::string out = AnswerHead("cmpl-", "text_completion", request);
  ChoiceWriter choices(request, model);
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) out += ',';
    const size_t first = i - i % static_cast<size_t>(request.n);
    TAOPD_RETURN_IF_ERROR(choices.Append(i, results[first].score, *results[i].generated, &out));
  }
  return out + "],\"service_tier\":null,\"system_fingerprint\":" + SystemFingerprintJson(model) +
         ",\"usage\":" + UsageJson(request, results) +
         ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}";
}

void StreamCompletion(const CompletionRequest& request, const ServedModel& model,
                      const PromptScores& scores, Generation* generation, const SendPiece& send) {
  CompletionChunks chunks(request, model, scores);
  StreamUpdates(
      request, generation, [&](const ChoiceUpdate& update) { return chunks.Chunk(update); },
      [&] { return chunks.UsageChunk(); }, send);
}

}  // namespace taopd
