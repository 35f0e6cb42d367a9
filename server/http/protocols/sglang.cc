#include "server/http/protocols/protocols.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/generation/generated_text.h"
#include "server/generation/prompts.h"
#include "server/generation/request_fields.h"
#include "server/http/request/common_fields.h"
#include "server/http/request/request_body.h"
#include "server/http/response/answer_json.h"
#include "server/http/response/chunk_frame.h"
#include "server/http/response/token_text.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kDefaultMaxNewTokens = 128;  // SGLang's
constexpr int64_t kMaxStreamedTokens = 4096;
constexpr char kIds[] = "input_ids";
constexpr char kText[] = "text";
constexpr char kStart[] = "logprob_start_len";
constexpr char kCandidates[] = "token_ids_logprob";

absl::Status ReadSglangPrompts(JsonFields& fields, const ServedModel& model,
                               SglangRequest* request) {
  const ordered_json* ids = fields.Find(kIds);
  const ordered_json* text = fields.Find(kText);
  if ((ids == nullptr) == (text == nullptr)) {
    return InvalidArgument("Either text or input_ids must be provided, and not both.");
  }
  if (text != nullptr) {
    request->is_batch = text->is_array();
    if (text->is_string())
      return AddPromptText(text->get<std::string>(), /*add_special_tokens=*/true, kText, model,
                           request);
    for (const std::string& item : fields.Texts(kText)) {
      TAOPD_RETURN_IF_ERROR(
          AddPromptText(item, /*add_special_tokens=*/true, kText, model, request));
    }
  } else {
    if (!ids->is_array()) return WrongType(kIds, "a list of token ids, or a list of such lists");
    request->is_batch = !ids->empty() && ids->front().is_array();
    if (!request->is_batch) return AddPromptIds(*ids, kIds, model, request);
    for (const ordered_json& item : *ids) {
      if (!item.is_array()) return WrongType(kIds, "a list of lists of token ids");
      TAOPD_RETURN_IF_ERROR(AddPromptIds(item, kIds, model, request));
    }
  }
  if (request->prompts.empty() && fields.error().ok())
    return InvalidArgument("You must pass at least one prompt");
  return absl::OkStatus();
}

// Reads the constraint of the text, under SGLang's names. An empty text means none.
absl::Status ReadGrammar(JsonFields& sampling, SglangRequest* request) {
  using Kind = GrammarSpec::Kind;
  for (const auto& [name, kind] :
       {std::pair("json_schema", Kind::kJsonSchema), std::pair("regex", Kind::kRegex),
        std::pair("ebnf", Kind::kEbnf), std::pair("structural_tag", Kind::kStructuralTag)}) {
    std::string text = sampling.Text(name).value_or("");
    if (text.empty()) continue;
    if (request->grammar) {
      return FieldError(name, "Only one of regex, json_schema, ebnf or structural_tag can be set.");
    }
    request->grammar = RequestedGrammar{{.kind = kind, .text = std::move(text)}, name};
  }
  return absl::OkStatus();
}

// Reads sampling_params. max_new_tokens, min_new_tokens, sampling_seed and no_stop_trim are the
// own names of SGLang. They win over min_tokens and seed.
absl::Status ReadSglangParams(JsonFields& sampling, const ServedModel& model,
                              SglangRequest* request) {
  TAOPD_RETURN_IF_ERROR(ReadSampling(sampling, SamplingParams(), model, request));
  request->include_stop_str_in_output |= sampling.Bool("no_stop_trim").value_or(false);
  request->max_tokens = sampling.ClampedInteger("max_new_tokens").value_or(kDefaultMaxNewTokens);
  request->sampling.min_tokens =
      sampling.Integer("min_new_tokens").value_or(request->sampling.min_tokens);
  if (const auto seed = sampling.Integer("sampling_seed")) request->seed = SignedSeed(seed);
  TAOPD_RETURN_IF_ERROR(ReadGrammar(sampling, request));
  if (request->max_tokens < 0) {
    return FieldValueError("max_new_tokens", request->max_tokens,
                           "max_new_tokens must be at least 0, got ", request->max_tokens, ".");
  }
  if (request->stream && request->max_tokens > kMaxStreamedTokens) {
    return FieldError("max_new_tokens", "max_new_tokens must be at most ", kMaxStreamedTokens,
                      " in a stream, whose events repeat everything so far, got ",
                      request->max_tokens, ".");
  }
  if (request->sampling.min_tokens < 0) {
    return FieldError("min_new_tokens", "min_new_tokens must be at least 0, got ",
                      request->sampling.min_tokens, ".");
  }
  return sampling.error();
}

absl::Status ReadStarts(JsonFields& fields, SglangRequest* request) {
  const ordered_json* value = fields.Find(kStart);
  const size_t num_prompts = request->prompts.size();
  if (value != nullptr && value->is_array()) {
    request->start_lens = fields.Integers(kStart);
    if (request->start_lens.size() != num_prompts) {
      return FieldError(kStart, kStart, " has ", request->start_lens.size(), " entries for ",
                        num_prompts, " prompts.");
    }
  } else {
    request->start_lens.assign(num_prompts, fields.Integer(kStart).value_or(-1));
  }
  for (size_t i = 0; i < num_prompts; ++i) {
    GenerationPrompt& prompt = request->prompts[i];
    const int64_t num_tokens = static_cast<int64_t>(prompt.token_ids.size());
    int64_t& start = request->start_lens[i];
    if (start == -1) start = num_tokens - 1;
    if (start < 0 || start >= num_tokens) {
      return FieldError(kStart, kStart, " ", start, " must be -1, or from 0 to ", num_tokens - 1,
                        " for a prompt of ", num_tokens, " tokens.");
    }
    prompt.score_start = start + 1;
  }
  return absl::OkStatus();
}

class SglangWriter {
 public:
  SglangWriter(const SglangRequest& request, const ServedModel& model)
      : request_(request),
        weight_version_(JsonText(model.weight_version)),
        tokenizer_(model.tokenizer.get()),
        tokens_(request.text_in_logprobs ? tokenizer_ : nullptr, /*as_token_ids=*/false) {}

  // Appends one choice, and its index if with_index. `is_last` is false in a stream that continues.
  absl::Status Append(size_t choice, const std::optional<ScoreRows>& rows,
                      const GeneratedTokens& generated, bool is_last, bool with_index,
                      std::string* out) {
    const GenerationPrompt& prompt = request_.PromptOf(choice);
    StreamedChoice whole(tokenizer_, request_, {});
    const std::string text = whole.Add(generated, is_last);
    std::string finish = Concat("{\"type\":\"length\",\"length\":", generated.ids.size(), "}");
    if (!generated.ids.empty() && generated.finish == FinishReason::kStop) {
      const std::string matched = StopReasonJson(generated, whole.stop_string(), request_);
      finish = Concat("{\"type\":\"stop\",\"matched\":",
                      matched == "null" ? std::to_string(generated.ids.back()) : matched, "}");
    }
    const std::string id =
        request_.NumChoices() == 1 ? request_.request_id : Concat(request_.request_id, "_", choice);
    *out += Concat("{\"text\":", JsonText(text), ",\"output_ids\":", IdsJson(generated.ids),
                   ",\"meta_info\":{\"id\":", JsonText(id),
                   ",\"finish_reason\":", is_last ? finish : "null",
                   ",\"prompt_tokens\":", prompt.token_ids.size(),
                   ",\"completion_tokens\":", generated.ids.size(),
                   ",\"cached_tokens\":0,\"weight_version\":", weight_version_);
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
    *out += with_index ? Concat("},\"index\":", choice, "}") : "}}";
    return absl::OkStatus();
  }

 private:
  // Appends [log-prob, id, text or null].
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

  // Appends rows of k triples each, after `num_null` rows that are null. If there are only k ids,
  // all rows have them.
  void AppendRows(const char* name, size_t num_null, size_t k, std::span<const int32_t> ids,
                  std::span<const float> values, std::string* out) {
    *out += Concat(",\"", name, "\":");
    AppendList(num_null + values.size() / k, out, [&](size_t i) {
      if (i < num_null) {
        *out += "null";
        return;
      }
      const size_t row = (i - num_null) * k;
      AppendList(k, out, [&](size_t j) {
        AppendTriple(&values[row + j], ids[(row + j) % ids.size()], {}, out);
      });
    });
  }

  // Appends the tokens of the prompt and the generated ones. The token at logprob_start_len has no
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
    const auto k = static_cast<size_t>(request_.prompt_logprobs.value_or(0));
    if (k == 0) return;
    if (request_.flat) {
      AppendFlat(rows, k, out);
    } else {
      AppendRows("input_top_logprobs", /*num_null=*/1, k, rows.ids, rows.log_probs, out);
    }
    AppendRows("output_top_logprobs", /*num_null=*/0, k, generated.top_ids, generated.top_log_probs,
               out);
  }

  // Appends the log-probs of chosen ids. The engine has them for the prompt only, so a request that
  // generates gets no list for its output.
  void AppendCandidates(const ScoreRows& rows, const GeneratedTokens& generated, std::string* out) {
    const PromptScoring& scoring = request_.scoring;
    if (scoring.num_candidates == 0) return;
    AppendRows("input_token_ids_logprobs", /*num_null=*/1,
               static_cast<size_t>(scoring.num_candidates), scoring.candidate_ids,
               CandidateLogProbs(scoring, rows), out);
    if (generated.ids.empty()) *out += ",\"output_token_ids_logprobs\":[]";
  }

  void AppendFlat(const ScoreRows& rows, size_t k, std::string* out) {
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
  const std::string weight_version_;  // as JSON
  const Tokenizer* const tokenizer_;
  TokenText tokens_;
};

}  // namespace

absl::Status ReadSglangRequest(JsonFields& fields, const ServedModel& model,
                               SglangRequest* request) {
  request->request_id = fields.Text("rid").value_or("");
  if (request->request_id.empty()) request->request_id = RandomRequestId();
  TAOPD_RETURN_IF_ERROR(CheckRequestId("rid", request->request_id));
  request->stream = fields.Bool("stream").value_or(false);
  request->return_logprob = fields.Bool("return_logprob").value_or(false);
  request->text_in_logprobs = fields.Bool("return_text_in_logprobs").value_or(false);
  request->base64 = fields.Bool("return_flat_raw_top_logprobs_b64").value_or(false);
  request->flat = fields.Bool("return_flat_raw_top_logprobs").value_or(false) || request->base64;
  request->return_token_ids = fields.Bool("return_prompt_token_ids").value_or(false);
  request->cache_salt = fields.Text("cache_salt").value_or(fields.Text("extra_key").value_or(""));
  TAOPD_RETURN_IF_ERROR(CheckCacheSalt(request->cache_salt));
  std::optional<int32_t> top_k;
  TAOPD_RETURN_IF_ERROR(ReadLogprobs(fields, "top_logprobs_num", "prompt", model, &top_k));
  TAOPD_RETURN_IF_ERROR(ReadCandidates(fields, kCandidates, model, &request->scoring));
  JsonFields& sampling = fields.Nested("sampling_params");
  TAOPD_RETURN_IF_ERROR(fields.error());
  TAOPD_RETURN_IF_ERROR(ReadSglangParams(sampling, model, request));
  TAOPD_RETURN_IF_ERROR(ReadSglangPrompts(fields, model, request));
  TAOPD_RETURN_IF_ERROR(ReadStarts(fields, request));
  TAOPD_RETURN_IF_ERROR(fields.error());
  if (!request->scoring.one_list) {
    return FieldError(kCandidates, kCandidates,
                      " must be one list of ids, which all positions share.");
  }
  if (request->return_logprob) {
    request->logprobs = top_k.value_or(0);
    request->prompt_logprobs = top_k.value_or(0);
  }
  return FinishPrompts(model, /*echo_only=*/false, request);
}

absl::StatusOr<std::string> SglangResponseJson(const SglangRequest& request,
                                               const ServedModel& model,
                                               const std::vector<InferenceResult>& results) {
  SglangWriter writer(request, model);
  const bool is_list = request.is_batch || request.n > 1;
  std::string out = is_list ? "[" : "";
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) out += ',';
    const size_t first = i - i % static_cast<size_t>(request.n);
    TAOPD_RETURN_IF_ERROR(writer.Append(i, results[first].score,
                                        results[i].generated.value_or(GeneratedTokens()),
                                        /*is_last=*/true, /*with_index=*/false, &out));
  }
  if (is_list) out += ']';
  return out;
}

void StreamSglang(const SglangRequest& request, const ServedModel& model,
                  const PromptScores& scores, Generation* generation, const SendPiece& send) {
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
                                        update.is_last, request.NumChoices() > 1, &event));
    return event;
  };
  StreamUpdates(
      request, generation, chunk, [] { return std::string(); }, send);
}

}  // namespace taopd
