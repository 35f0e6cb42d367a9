#include "server/http/dialects/protocols.h"

#include <utility>

#include "server/generation/generated_text.h"
#include "server/http/generation/chunk_frame.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/token_text.h"

namespace taopd {
namespace {

class SglangWriter {
 public:
  SglangWriter(const SglangRequest& request, const ServedModel& model)
      : request_(request),
        tokenizer_(model.tokenizer.get()),
        tokens_(request.text_in_logprobs ? tokenizer_ : nullptr, /*as_token_ids=*/false) {}

  // One choice. `is_last` is false in a stream that continues.
  absl::Status Append(size_t choice, const std::optional<ScoreRows>& rows,
                      const GeneratedTokens& generated, bool is_last, std::string* out) {
    const GenerationPrompt& prompt = request_.PromptOf(choice);
    StreamedChoice whole(tokenizer_, request_, {});
    const std::string text = whole.Add(generated, /*is_last=*/true);
    std::string finish = Concat("{\"type\":\"length\",\"length\":", generated.ids.size(), "}");
    if (!generated.ids.empty() && generated.finish == FinishReason::kStop) {
      const std::string matched = StopReasonJson(generated, whole.stop_string(), request_);
      finish = Concat("{\"type\":\"stop\",\"matched\":",
                      matched == "null" ? std::to_string(generated.ids.back()) : matched, "}");
    }
    const std::string id =
        request_.NumChoices() == 1 ? request_.request_id : Concat(request_.request_id, "_", choice);
    *out += Concat("{\"text\":", JsonString(text), ",\"output_ids\":", IdsJson(generated.ids),
                   ",\"meta_info\":{\"id\":", JsonString(id),
                   ",\"finish_reason\":", is_last ? finish : "null",
                   ",\"prompt_tokens\":", prompt.token_ids.size(),
                   ",\"completion_tokens\":", generated.ids.size(),
                   ",\"cached_tokens\":0,\"weight_version\":\"default\"");
    if (request_.return_token_ids) *out += ",\"prompt_token_ids\":" + IdsJson(prompt.token_ids);
    if (request_.return_logprob) {
      const ScoreRows scored = rows.value_or(ScoreRows());
      for (const auto* values :
           {&scored.sampled_log_probs, &scored.log_probs, &scored.candidate_log_probs,
            &generated.raw_log_probs, &generated.top_log_probs}) {
        TAOPD_RETURN_IF_ERROR(CheckNumbers(*values));
      }
      AppendTokens(prompt, scored, generated, out);
      AppendTops(scored, generated, out);
      AppendCandidates(scored, generated, out);
    }
    *out += "}}";
    return absl::OkStatus();
  }

 private:
  // [log-prob, id, text or null]
  void AppendTriple(const float* log_prob, int32_t id, std::span<const int32_t> context,
                    std::string* out) {
    *out += '[';
    if (log_prob == nullptr) {
      *out += "null";
    } else {
      AppendLogprob(*log_prob, out);
    }
    *out += "," + std::to_string(id) + "," + tokens_.DecodedTokenJson(id, context) + "]";
  }

  // Rows of k triples each, the first `num_null` of them null.
  void AppendRows(const char* name, size_t num_null, int64_t num_rows, int32_t k,
                  const int32_t* ids, bool same_ids, const float* values, std::string* out) {
    *out += Concat(",\"", name, "\":");
    AppendList(num_null + static_cast<size_t>(num_rows), out, [&](size_t i) {
      if (i < num_null) {
        *out += "null";
        return;
      }
      const size_t row = (i - num_null) * static_cast<size_t>(k);
      AppendList(static_cast<size_t>(k), out, [&](size_t j) {
        AppendTriple(values + row + j, ids[(same_ids ? 0 : row) + j], {}, out);
      });
    });
  }

  // Each token of the prompt and each generated one. The token at logprob_start_len has no
  // log-prob.
  void AppendTokens(const GenerationPrompt& prompt, const ScoreRows& rows,
                    const GeneratedTokens& generated, std::string* out) {
    const size_t start = static_cast<size_t>(prompt.score_start - 1);
    std::vector<int32_t> ids = prompt.token_ids;
    *out += ",\"input_token_logprobs\":";
    AppendList(ids.size() - start, out, [&](size_t r) {
      const float* log_prob = r > 0 ? &rows.sampled_log_probs[r - 1] : nullptr;
      AppendTriple(log_prob, ids[start + r], std::span<const int32_t>(ids).first(start + r), out);
    });
    *out += ",\"output_token_logprobs\":";
    AppendList(generated.ids.size(), out, [&](size_t i) {
      AppendTriple(&generated.raw_log_probs[i], generated.ids[i], ids, out);
      ids.push_back(generated.ids[i]);
    });
  }

  void AppendTops(const ScoreRows& rows, const GeneratedTokens& generated, std::string* out) {
    const int32_t k = request_.prompt_logprobs.value_or(0);
    if (k == 0) return;
    if (request_.flat) {
      AppendFlat(rows, k, out);
    } else {
      AppendRows("input_top_logprobs", 1, rows.num_rows, k, rows.ids.data(), false,
                 rows.log_probs.data(), out);
    }
    AppendRows("output_top_logprobs", 0, static_cast<int64_t>(generated.ids.size()), k,
               generated.top_ids.data(), false, generated.top_log_probs.data(), out);
  }

  // The engine has these of the prompt alone: a request that generates gets no list of the
  // output's.
  void AppendCandidates(const ScoreRows& rows, const GeneratedTokens& generated, std::string* out) {
    const PromptScoring& scoring = request_.scoring;
    if (scoring.num_candidates == 0) return;
    AppendRows("input_token_ids_logprobs", 1, rows.num_rows, scoring.num_candidates,
               scoring.candidate_ids.data(), true, rows.candidate_log_probs.data(), out);
    if (generated.ids.empty()) *out += ",\"output_token_ids_logprobs\":[]";
  }

  void AppendFlat(const ScoreRows& rows, int32_t k, std::string* out) {
    if (request_.base64) {
      *out += ",\"input_top_logprobs_val_flat_b64\":" + Base64Json(rows.log_probs) +
              ",\"input_top_logprobs_idx_flat_b64\":" + Base64Json(rows.ids) +
              ",\"input_top_logprobs_val_flat_b64_dtype\":\"float32\"" +
              ",\"input_top_logprobs_idx_flat_b64_dtype\":\"int32\"";
    } else {
      *out += ",\"input_top_logprobs_val_flat\":";
      AppendList(rows.log_probs.size(), out,
                 [&](size_t i) { AppendLogprob(rows.log_probs[i], out); });
      *out += ",\"input_top_logprobs_idx_flat\":" + IdsJson(rows.ids);
    }
    *out += Concat(",\"input_top_logprobs_shape\":[", rows.num_rows, ",", k,
                   "],\"input_top_logprobs_null_prefix\":1");
  }

  const SglangRequest& request_;
  const Tokenizer* const tokenizer_;
  TokenText tokens_;
};

}  // namespace

absl::StatusOr<std::string> SglangResponseJson(const SglangRequest& request,
                                               const ServedModel& model,
                                               const std::vector<InferenceResult>& results,
                                               int64_t /*created_unix_s*/) {
  SglangWriter writer(request, model);
  const bool is_list = request.is_batch || request.n > 1;
  std::string out = is_list ? "[" : "";
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) out += ',';
    const size_t first = i - i % static_cast<size_t>(request.n);
    TAOPD_RETURN_IF_ERROR(writer.Append(i, results[first].score,
                                        results[i].generated.value_or(GeneratedTokens()),
                                        /*is_last=*/true, &out));
  }
  if (is_list) out += ']';
  return out;
}

void StreamSglang(const SglangRequest& request, const ServedModel& model,
                  const PromptScores& scores, int64_t /*created_unix_s*/, Generation* generation,
                  const SendPiece& send) {
  SglangWriter writer(request, model);
  std::vector<GeneratedTokens> so_far(request.NumChoices());
  const auto chunk = [&](const ChoiceUpdate& update) -> absl::StatusOr<std::string> {
    GeneratedTokens& tokens = so_far[update.choice];
    AppendLastTokens(update.tokens, update.tokens.ids.size(),
                     static_cast<size_t>(request.sampling.num_log_probs), &tokens);
    const size_t prompt = update.choice / static_cast<size_t>(request.n);
    std::string event;
    TAOPD_RETURN_IF_ERROR(writer.Append(update.choice,
                                        scores.empty() ? std::nullopt : scores[prompt], tokens,
                                        update.is_last, &event));
    if (request.NumChoices() > 1)
      event.insert(event.size() - 1, Concat(",\"index\":", update.choice));
    return event;
  };
  StreamUpdates(
      request, generation, chunk, [] { return std::string(); }, send);
}

}  // namespace taopd
