#include "server/http/sglang/sglang_response.h"

#include <cmath>
#include <utility>

#include "server/generation/generated_text.h"
#include "server/http/generation/logprob_json.h"
#include "server/http/generation/token_text.h"

namespace taopd {
namespace {

absl::Status CheckValues(const std::vector<float>& values) {
  for (const float value : values) {
    if (std::isnan(value) || value == INFINITY) return Internal("a log-probability is ", value);
  }
  return absl::OkStatus();
}

class SglangWriter {
 public:
  SglangWriter(const SglangRequest& request, const ServedModel& model)
      : request_(request),
        tokenizer_(model.tokenizer.get()),
        tokens_(request.text_in_logprobs ? tokenizer_ : nullptr, /*as_token_ids=*/false) {}

  // One choice. `is_last` is false in a stream that goes on.
  absl::Status Append(size_t choice, const std::optional<ScoreRows>& rows,
                      const GeneratedTokens& generated, bool is_last, std::string* out) {
    const GenerationPrompt& prompt = request_.PromptOf(choice);
    std::string text;
    std::string finish = Concat("{\"type\":\"length\",\"length\":", generated.ids.size(), "}");
    if (!generated.ids.empty()) {
      std::optional<size_t> stop_string;
      if (tokenizer_ != nullptr) {
        const GeneratedText finished = FinishedText(generated, tokenizer_, request_);
        text = finished.text();
        stop_string = finished.stop_string();
      }
      if (generated.finish == FinishReason::kStop) {
        const std::string matched = StopReasonJson(generated, stop_string, request_);
        finish = Concat("{\"type\":\"stop\",\"matched\":",
                        matched == "null" ? std::to_string(generated.ids.back()) : matched, "}");
      }
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
        TAOPD_RETURN_IF_ERROR(CheckValues(*values));
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
    *out += Concat(",\"", name, "\":[");
    for (size_t i = 0; i < num_null; ++i) *out += i > 0 ? ",null" : "null";
    for (int64_t r = 0; r < num_rows; ++r) {
      if (num_null > 0 || r > 0) *out += ',';
      *out += '[';
      for (int32_t j = 0; j < k; ++j) {
        if (j > 0) *out += ',';
        AppendTriple(values + r * k + j, ids[(same_ids ? 0 : r * k) + j], {}, out);
      }
      *out += ']';
    }
    *out += ']';
  }

  // Each token of the prompt and each generated one. The token at logprob_start_len has no
  // log-prob.
  void AppendTokens(const GenerationPrompt& prompt, const ScoreRows& rows,
                    const GeneratedTokens& generated, std::string* out) {
    const size_t start = static_cast<size_t>(prompt.score_start - 1);
    *out += ",\"input_token_logprobs\":[";
    for (size_t t = start; t < prompt.token_ids.size(); ++t) {
      if (t > start) *out += ',';
      const float* log_prob = t > start ? &rows.sampled_log_probs[t - start - 1] : nullptr;
      AppendTriple(log_prob, prompt.token_ids[t],
                   std::span<const int32_t>(prompt.token_ids).first(t), out);
    }
    std::vector<int32_t> ids = prompt.token_ids;
    *out += "],\"output_token_logprobs\":[";
    for (size_t i = 0; i < generated.ids.size(); ++i) {
      if (i > 0) *out += ',';
      AppendTriple(&generated.raw_log_probs[i], generated.ids[i], ids, out);
      ids.push_back(generated.ids[i]);
    }
    *out += ']';
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
      *out += ",\"input_top_logprobs_val_flat\":[";
      for (size_t i = 0; i < rows.log_probs.size(); ++i) {
        if (i > 0) *out += ',';
        AppendLogprob(rows.log_probs[i], out);
      }
      *out += "],\"input_top_logprobs_idx_flat\":" + IdsJson(rows.ids);
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
  const auto append = [](const auto& from, auto* to) {
    to->insert(to->end(), from.begin(), from.end());
  };
  absl::StatusOr<std::optional<ChoiceUpdate>> update = generation->Next();
  for (; update.ok() && *update; update = generation->Next()) {
    const ChoiceUpdate& news = **update;
    GeneratedTokens& tokens = so_far[news.choice];
    append(news.tokens.ids, &tokens.ids);
    append(news.tokens.raw_log_probs, &tokens.raw_log_probs);
    append(news.tokens.top_ids, &tokens.top_ids);
    append(news.tokens.top_log_probs, &tokens.top_log_probs);
    if (news.is_last) tokens.finish = news.tokens.finish;
    std::string event;
    const size_t prompt = news.choice / static_cast<size_t>(request.n);
    const absl::Status written = writer.Append(
        news.choice, scores.empty() ? std::nullopt : scores[prompt], tokens, news.is_last, &event);
    if (!written.ok()) {
      update = written;
      break;
    }
    if (request.NumChoices() > 1)
      event.insert(event.size() - 1, Concat(",\"index\":", news.choice));
    if (!send(Event(event))) return;
  }
  if (!update.ok() && !send(Event(FromStatus(update.status()).Json()))) return;
  send(kLastEvent);
}

}  // namespace taopd
