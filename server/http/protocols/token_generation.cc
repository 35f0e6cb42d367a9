#include "server/http/protocols/protocols.h"

#include <absl/strings/escaping.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/generation/generated_text.h"
#include "server/generation/request_fields.h"
#include "server/http/request/common_fields.h"
#include "server/http/response/answer_json.h"
#include "server/http/response/chunk_frame.h"
#include "server/http/response/token_text.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr char kParams[] = "sampling_params";
constexpr char kTokens[] = "token_ids";
constexpr char kFirstRow[] = "prompt_logprob_start";

// Checks vLLM's own fields for the log-probs of chosen ids. Sets npy_candidates if the request has
// them.
absl::Status CheckChosenIds(JsonFields& sampling, TokenRequest* request) {
  const std::optional<int64_t> start = sampling.Integer(kFirstRow);
  const ordered_json* ids = sampling.Find("prompt_logprob_token_ids");
  if (start && (*start < 0 || ids == nullptr || sampling.Find("prompt_logprobs_start"))) {
    return FieldError(kFirstRow, kFirstRow,
                      " must be at least 0, needs prompt_logprob_token_ids, and takes the place of "
                      "prompt_logprobs_start.");
  }
  if (ids == nullptr || !ids->is_array() || ids->empty() || !ids->front().is_array())
    return absl::OkStatus();  // one list is our own form
  if (request->stream) {
    return FieldError("prompt_logprob_token_ids",
                      "prompt_logprob_token_ids are not available when stream=true.");
  }
  request->npy_candidates = true;
  return absl::OkStatus();
}

absl::Status ReadParams(JsonFields& sampling, const ServedModel& model, TokenRequest* request) {
  // As in vLLM, generation_config.json gives no defaults here.
  TAOPD_RETURN_IF_ERROR(ReadSampling(sampling, SamplingParams(), model, request));
  request->detokenize = sampling.Bool("detokenize").value_or(true);
  request->max_tokens = sampling.ClampedInteger("max_tokens").value_or(INT64_MAX);
  TAOPD_RETURN_IF_ERROR(CheckMaxTokens(request->max_tokens));
  if (!request->stop.empty() && !request->detokenize) {
    return FieldError("stop",
                      "stop strings are only supported when detokenize is True. Set "
                      "detokenize=True to use stop.");
  }
  TAOPD_RETURN_IF_ERROR(ReadLogprobs(sampling, "logprobs", "sample", model, &request->logprobs));
  TAOPD_RETURN_IF_ERROR(ReadPromptLogprobs(sampling, model, request));
  TAOPD_RETURN_IF_ERROR(CheckChosenIds(sampling, request));
  if (request->npy_candidates && !request->prompt_logprobs) request->prompt_logprobs = 0;
  TAOPD_RETURN_IF_ERROR(ReadScoring(sampling, model, /*streams_start=*/false, request));
  // Row i belongs to position start + i + 1. No prompt has a row max_model_len.
  if (const std::optional<int64_t> row = sampling.Integer(kFirstRow))
    request->scoring.start = std::min(*row, model.limits.max_model_len) + 1;
  request->ranks = true;
  return sampling.error();
}

void AppendEntry(const PositionEntry& entry, std::string* out) {
  *out += "{\"token_id\":" + std::to_string(entry.id) + ",\"logprob\":";
  AppendLogprob(entry.log_prob, out);
  *out += ",\"rank\":" + std::to_string(entry.rank);
}

// Appends {"content":[{"token_id","logprob","rank","top_logprobs"}]}.
void AppendIdLogprobs(const std::vector<Position>& positions, int32_t top_k, std::string* out) {
  *out += "{\"content\":";
  AppendList(positions.size(), out, [&](size_t i) {
    AppendEntry(positions[i].front(), out);
    *out += ",\"top_logprobs\":";
    const size_t num_entries =
        std::min(positions[i].size(), static_cast<size_t>(std::max(top_k, 1)));
    AppendList(num_entries, out, [&](size_t j) {
      AppendEntry(positions[i][j], out);
      *out += '}';
    });
    *out += '}';
  });
  *out += '}';
}

// Appends the choice with the next tokens: those of an update, or all at once.
absl::Status AppendChoice(const TokenRequest& request, const ServedModel& model, size_t index,
                          const GeneratedTokens& generated, bool is_last, StreamedChoice& choice,
                          TokenText& tokens, std::string* out) {
  const std::string text = choice.Add(generated, is_last);
  *out += Concat("{\"index\":", index, ",\"finish_reason\":",
                 is_last ? Concat("\"", FinishReasonName(generated.finish), "\"") : "null",
                 ",\"stop_reason\":",
                 is_last ? StopReasonJson(generated, choice.stop_string(), request) : "null",
                 ",\"token_ids\":", IdsJson(generated.ids),
                 ",\"routed_experts\":null,\"sampling_mask\":null,\"weight_versions\":",
                 is_last ? Concat("[{\"version\":", JsonText(model.weight_version),
                                  ",\"start\":0,\"end\":", choice.num_generated(), "}]")
                         : "null");
  if (request.text_output) *out += ",\"text\":" + JsonText(text);
  *out += ",\"logprobs\":";
  if (request.text_output || !request.logprobs) {
    TAOPD_RETURN_IF_ERROR(AppendChatLogprobs(request, choice.ids(), generated, tokens, out));
  } else {
    const std::vector<Position> positions = GeneratedPositions(generated, *request.logprobs);
    TAOPD_RETURN_IF_ERROR(CheckNumbers(positions));
    AppendIdLogprobs(positions, *request.logprobs, out);
  }
  *out += '}';
  return absl::OkStatus();
}

// Returns the log-probs of the candidates as a NumPy file, float32 [rows, candidates].
std::string NpyJson(const TokenRequest& request, const std::optional<ScoreRows>& rows) {
  const PromptScoring& scoring = request.scoring;
  const std::vector<float> values = rows ? CandidateLogProbs(scoring, *rows) : std::vector<float>();
  std::string header = Concat("{'descr': '<f4', 'fortran_order': False, 'shape': (",
                              rows ? rows->num_rows : 0, ", ", scoring.num_candidates, "), }");
  constexpr size_t kAlignment = 64, kPrefixBytes = 10;
  while ((kPrefixBytes + header.size() + 1) % kAlignment != 0) header += ' ';
  header += '\n';
  std::string file = "\x93NUMPY";
  file += '\x01';
  file += '\0';
  file += static_cast<char>(header.size() & 0xFF);
  file += static_cast<char>(header.size() >> 8);
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return "\"" + absl::Base64Escape(absl::string_view(file.data(), file.size())) + "\"";
}

std::string RequestIdJson(const TokenRequest& request) {
  return JsonText("generate-tokens-" + request.request_id);
}

const char* OutputMode(const TokenRequest& request) {
  return request.text_output ? "text" : "tokens";
}

StreamedChoice NewChoice(const TokenRequest& request, const ServedModel& model) {
  const bool has_text = request.text_output || !request.stop.empty();
  return {has_text ? model.tokenizer.get() : nullptr, request, request.prompts[0].token_ids};
}

class TokenChunks {
 public:
  TokenChunks(const TokenRequest& request, const ServedModel& model)
      : request_(request), model_(model), tokens_(model.tokenizer.get(), /*as_token_ids=*/false) {
    for (size_t i = 0; i < request.NumChoices(); ++i) choices_.push_back(NewChoice(request, model));
  }

  absl::StatusOr<std::string> Chunk(const ChoiceUpdate& update) {
    StreamedChoice& choice = choices_[update.choice];
    std::string appended;
    TAOPD_RETURN_IF_ERROR(AppendChoice(request_, model_, update.choice, update.tokens,
                                       update.is_last, choice, tokens_, &appended));
    std::string out = Concat(
        "{\"request_id\":", RequestIdJson(request_), ",\"usage\":",
        request_.continuous_usage
            ? UsageJson(request_.NumPromptTokens(), choice.num_generated(), UsageDetails::kAll)
            : "null");
    if (request_.return_token_ids && std::exchange(is_first_, false))
      out += ",\"prompt_token_ids\":" + IdsJson(request_.prompts[0].token_ids);
    return out +
           Concat(",\"output_mode\":\"", OutputMode(request_), "\",\"choices\":[", appended, "]}");
  }

  std::string UsageChunk() const {
    int64_t num_generated = 0;
    for (const StreamedChoice& choice : choices_) num_generated += choice.num_generated();
    return Concat("{\"request_id\":", RequestIdJson(request_), ",\"usage\":",
                  UsageJson(request_.NumPromptTokens(), num_generated, UsageDetails::kNone),
                  ",\"output_mode\":\"", OutputMode(request_), "\",\"choices\":[]}");
  }

 private:
  const TokenRequest& request_;
  const ServedModel& model_;
  TokenText tokens_;
  std::vector<StreamedChoice> choices_;
  bool is_first_ = true;
};

}  // namespace

absl::Status ReadTokenRequest(JsonFields& fields, const ServedModel& model, TokenRequest* request) {
  TAOPD_RETURN_IF_ERROR(ReadEnvelope(fields, model, request));
  const std::string mode = fields.Text("output_mode").value_or("tokens");
  request->return_token_ids = fields.Bool("return_token_ids").value_or(false);
  const ordered_json* ids = fields.Find(kTokens);
  if (mode != "tokens" && mode != "text") return WrongType("output_mode", "'tokens' or 'text'");
  request->text_output = mode == "text";
  TAOPD_RETURN_IF_ERROR(ReadParams(fields.Nested(kParams), model, request));
  TAOPD_RETURN_IF_ERROR(fields.error());
  if (ids == nullptr) return MissingField(kTokens);
  if (fields.Find(kParams) == nullptr) return MissingField(kParams);
  if (!ids->is_array()) return WrongType(kTokens, "a valid list");
  if (ids->empty()) return WrongType(kTokens, "a list with at least 1 item");
  if (request->text_output && (model.tokenizer == nullptr || !request->detokenize)) {
    return FieldError("output_mode",
                      "output_mode='text' requires a tokenizer and sampling_params.detokenize.");
  }
  TAOPD_RETURN_IF_ERROR(AddPromptIds(*ids, kTokens, model, request));
  return FinishPrompts(model, /*echo_only=*/false, request);
}

absl::StatusOr<std::string> TokenResponseJson(const TokenRequest& request, const ServedModel& model,
                                              const std::vector<InferenceResult>& results) {
  const GenerationPrompt& prompt = request.prompts[0];
  const std::optional<ScoreRows>& rows = results[0].score;
  TokenText token_texts(request.detokenize ? model.tokenizer.get() : nullptr,
                        /*as_token_ids=*/false);
  std::string out =
      Concat("{\"request_id\":", RequestIdJson(request), ",\"model\":", JsonText(request.model),
             ",\"created\":", request.created_unix_s, ",\"usage\":", UsageJson(request, results),
             ",\"prompt_logprobs\":");
  TAOPD_RETURN_IF_ERROR(AppendPromptLogprobs(request, prompt, rows, token_texts, &out));
  if (request.npy_candidates) {
    out += ",\"prompt_token_id_logprobs\":" + NpyJson(request, rows);
  } else if (ListsCandidates(request.scoring)) {
    AppendCandidateLogprobs(request, prompt, rows, &out);
  } else {
    out += ",\"prompt_token_id_logprobs\":null";
  }
  out += Concat(",\"prompt_token_ids\":", IdsJson(prompt.token_ids, request.return_token_ids),
                ",\"mm_placeholders\":null,\"metrics\":null,\"kv_transfer_params\":null,",
                "\"ec_transfer_params\":null,\"output_mode\":\"", OutputMode(request),
                "\",\"choices\":[");
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) out += ',';
    StreamedChoice choice = NewChoice(request, model);
    TAOPD_RETURN_IF_ERROR(AppendChoice(request, model, i, *results[i].generated, /*is_last=*/true,
                                       choice, token_texts, &out));
  }
  return out + "]}";
}

void StreamTokens(const TokenRequest& request, const ServedModel& model, const PromptScores&,
                  Generation* generation, const SendPiece& send) {
  TokenChunks chunks(request, model);
  StreamUpdates(
      request, generation, [&](const ChoiceUpdate& update) { return chunks.Chunk(update); },
      [&] { return chunks.UsageChunk(); }, send);
}

}  // namespace taopd
