#include "server/http/response/answer_json.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "common/io/jsonl.h"
#include "common/text/stop_strings.h"
#include "common/text/unicode/unicode.h"
#include "server/generation/generated_text.h"
#include "server/options/version.h"

namespace taopd {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are sent as they lie in memory");

// Returns the tokens before position i.
std::span<const int32_t> Before(const std::vector<int32_t>& ids, size_t i) {
  return std::span<const int32_t>(ids).first(i);
}

// Returns the tokens of a prompt before position i without the first one: as in vLLM, a token
// without a log-prob is not context.
std::span<const int32_t> BeforeInPrompt(const std::vector<int32_t>& ids, size_t i) {
  return Before(ids, i).subspan(std::min<size_t>(i, 1));
}

// Appends {"name":logprob,...}. Equal names keep the first place and the last value, as in Python's
// dict.
void AppendTopLogprobs(const Position& position, size_t num_entries,
                       std::span<const int32_t> context, TokenText& tokens, std::string* out) {
  std::vector<std::pair<std::string, float>> named;
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < std::min(num_entries, position.size()); ++i) {
    std::string name = tokens.Name(position[i].id, context);
    const auto [place, is_new] = places.emplace(name, named.size());
    if (is_new) {
      named.emplace_back(std::move(name), position[i].log_prob);
    } else {
      named[place->second].second = position[i].log_prob;
    }
  }
  char separator = '{';
  for (const auto& [name, log_prob] : named) {
    *out += separator;
    separator = ',';
    *out += JsonText(name) + ':';
    AppendLogprob(log_prob, out);
  }
  *out += '}';
}

void AppendPromptObjects(const std::vector<int32_t>& token_ids,
                         const std::vector<Position>& positions, TokenText& tokens,
                         std::string* out) {
  AppendList(positions.size(), out, [&](size_t i) {
    if (positions[i].empty()) {
      *out += "null";
      return;
    }
    char separator = '{';
    for (const PositionEntry& entry : positions[i]) {
      *out += separator;
      separator = ',';
      *out += '"';
      *out += std::to_string(entry.id);
      *out += "\":{\"logprob\":";
      AppendLogprob(entry.log_prob, out);
      *out += ",\"rank\":" + std::to_string(entry.rank) + ",\"decoded_token\":";
      *out += tokens.DecodedTokenJson(entry.id, BeforeInPrompt(token_ids, i));
      *out += '}';
    }
    *out += '}';
  });
}

template <typename T>
void AppendArray(const char* name, const std::vector<T>& values, std::string* out) {
  *out += Concat(",\"", name, "\":") + Base64Json(values);
}

void AppendPromptArrays(const GenerationRequest& request, const ScoreRows& rows, std::string* out) {
  const PromptScoring& scoring = request.scoring;
  *out += Concat("{\"format\":\"base64\",\"start\":", scoring.start, ",\"shape\":[", rows.num_rows,
                 ",", *request.prompt_logprobs, "]");
  AppendArray("token_ids", rows.ids, out);
  AppendArray("logprobs", rows.log_probs, out);
  AppendArray("tail_logprobs", rows.log_tail, out);
  AppendArray("sampled_logprobs", rows.sampled_log_probs, out);
  AppendArray("sampled_ranks", rows.sampled_ranks, out);
  if (scoring.num_candidates > 0) {
    AppendArray("candidate_logprobs", CandidateLogProbs(scoring, rows), out);
    *out += Concat(",\"candidates_shape\":[", rows.num_rows, ",", scoring.num_candidates, "]");
  }
  *out += '}';
}

// Appends an entry without its closing brace. `names_text` is false for the token itself, whose
// bytes are those of its text whatever its name is.
void AppendChatEntry(const PositionEntry& entry, bool names_text, std::span<const int32_t> context,
                     TokenText& tokens, std::string* out) {
  const std::string name = tokens.Name(entry.id, context);
  *out += "{\"token\":" + JsonText(name) + ",\"logprob\":";
  AppendLogprob(entry.log_prob, out);
  *out += ",\"bytes\":";
  const std::string text = names_text ? name : tokens.Decode(entry.id, context);
  AppendList(text.size(), out,
             [&](size_t i) { *out += std::to_string(static_cast<unsigned char>(text[i])); });
}

Position MakePosition(const PositionEntry& actual, const int32_t* top_ids,
                      const float* top_log_probs, int32_t top_k) {
  Position position = {actual};
  for (int32_t j = 0; j < top_k; ++j) {
    if (top_ids[j] == actual.id) {
      position.front() = {actual.id, top_log_probs[j], j + 1};
    } else {
      position.push_back({top_ids[j], top_log_probs[j], j + 1});
    }
  }
  return position;
}

}  // namespace

std::vector<Position> PromptPositions(const std::vector<int32_t>& token_ids, int64_t start,
                                      const std::optional<ScoreRows>& rows) {
  std::vector<Position> positions(token_ids.size());
  if (!rows) return positions;
  for (int64_t r = 0; r < rows->num_rows; ++r) {
    const size_t t = static_cast<size_t>(start + r);
    positions[t] = MakePosition({token_ids[t], rows->sampled_log_probs[r], rows->sampled_ranks[r]},
                                rows->ids.data() + r * rows->top_k,
                                rows->log_probs.data() + r * rows->top_k, rows->top_k);
  }
  return positions;
}

std::vector<Position> GeneratedPositions(const GeneratedTokens& generated, int32_t top_k) {
  std::vector<Position> positions;
  for (size_t i = 0; i < generated.ids.size(); ++i) {
    const int32_t rank = generated.ranks.empty() ? 0 : generated.ranks[i];
    positions.push_back(MakePosition({generated.ids[i], generated.raw_log_probs[i], rank},
                                     generated.top_ids.data() + i * top_k,
                                     generated.top_log_probs.data() + i * top_k, top_k));
  }
  return positions;
}

std::vector<float> CandidateLogProbs(const PromptScoring& scoring, const ScoreRows& rows) {
  std::vector<float> values = rows.candidate_log_probs;
  for (size_t i = 0; i < values.size(); ++i) {
    if (scoring.candidate_ids[i % scoring.candidate_ids.size()] < 0)
      values[i] = -std::numeric_limits<float>::infinity();
  }
  return values;
}

absl::Status CheckNumbers(const std::vector<float>& log_probs) {
  for (const float value : log_probs) {
    if (std::isnan(value) || value == INFINITY) return Internal("a log-probability is ", value);
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const std::vector<Position>& positions) {
  for (size_t i = 0; i < positions.size(); ++i) {
    for (const PositionEntry& entry : positions[i]) {
      if (std::isnan(entry.log_prob) || entry.log_prob == INFINITY) {
        return Internal("the log-probability of token ", entry.id, " at position ", i, " is ",
                        entry.log_prob);
      }
    }
  }
  return absl::OkStatus();
}

std::string IdsJson(const std::vector<int32_t>& ids, bool wanted) {
  if (!wanted) return "null";
  std::string out;
  AppendList(ids.size(), &out, [&](size_t i) { out += std::to_string(ids[i]); });
  return out;
}

absl::Status AppendPromptLogprobs(const GenerationRequest& request, const GenerationPrompt& prompt,
                                  const std::optional<ScoreRows>& rows, TokenText& tokens,
                                  std::string* out) {
  if (!request.prompt_logprobs) {
    *out += "null";
    return absl::OkStatus();
  }
  if (request.scoring.compact) {
    AppendPromptArrays(request, rows.value_or(ScoreRows()), out);
    return absl::OkStatus();
  }
  const std::vector<Position> positions =
      PromptPositions(prompt.token_ids, request.scoring.start, rows);
  TAOPD_RETURN_IF_ERROR(CheckNumbers(positions));
  AppendPromptObjects(prompt.token_ids, positions, tokens, out);
  return absl::OkStatus();
}

void AppendCandidateLogprobs(const GenerationRequest& request, const GenerationPrompt& prompt,
                             const std::optional<ScoreRows>& rows, std::string* out) {
  const PromptScoring& scoring = request.scoring;
  if (!ListsCandidates(scoring)) return;
  *out += ",\"prompt_token_id_logprobs\":";
  const size_t num_candidates = static_cast<size_t>(scoring.num_candidates);
  const std::vector<float> values = rows ? CandidateLogProbs(scoring, *rows) : std::vector<float>();
  AppendList(prompt.token_ids.size(), out, [&](size_t t) {
    const int64_t r = static_cast<int64_t>(t) - scoring.start;
    if (r < 0) {
      *out += "null";
      return;
    }
    AppendList(num_candidates, out, [&](size_t m) {
      AppendLogprob(values[static_cast<size_t>(r) * num_candidates + m], out);
    });
  });
}

void AppendCompletionLogprobs(const std::vector<int32_t>& token_ids, size_t first,
                              const std::vector<Position>& positions, int32_t top_k,
                              TokenText& tokens, int64_t* text_offset, std::string* out) {
  std::string offsets, log_probs, names, tops;
  for (size_t i = 0; i < positions.size(); ++i) {
    const char* comma = i > 0 ? "," : "";
    const std::span<const int32_t> context =
        first == 0 ? BeforeInPrompt(token_ids, i) : Before(token_ids, first + i);
    const std::string name = positions[i].empty() ? tokens.NameAlone(token_ids[first + i])
                                                  : tokens.Name(token_ids[first + i], context);
    offsets += comma + std::to_string(*text_offset);
    *text_offset += NumCodePoints(name);
    names += comma + JsonText(name);
    log_probs += comma;
    tops += comma;
    if (positions[i].empty()) {
      log_probs += "null";
      tops += "null";
    } else {
      AppendLogprob(positions[i].front().log_prob, &log_probs);
      AppendTopLogprobs(positions[i], static_cast<size_t>(top_k) + 1, context, tokens, &tops);
    }
  }
  *out += "{\"text_offset\":[" + offsets + "],\"token_logprobs\":[" + log_probs + "],\"tokens\":[" +
          names + "],\"top_logprobs\":[" + tops + "]}";
}

absl::Status AppendChatLogprobs(const GenerationRequest& request, const std::vector<int32_t>& ids,
                                const GeneratedTokens& generated, TokenText& tokens,
                                std::string* out) {
  if (!request.logprobs) {
    *out += "null";
    return absl::OkStatus();
  }
  const std::vector<Position> positions = GeneratedPositions(generated, *request.logprobs);
  TAOPD_RETURN_IF_ERROR(CheckNumbers(positions));
  const size_t first = ids.size() - generated.ids.size();
  const auto top_k = static_cast<size_t>(*request.logprobs);
  *out += "{\"content\":";
  AppendList(positions.size(), out, [&](size_t i) {
    const std::span<const int32_t> context = Before(ids, first + i);
    AppendChatEntry(positions[i].front(), /*names_text=*/false, context, tokens, out);
    *out += ",\"top_logprobs\":";
    AppendList(std::min(positions[i].size(), top_k), out, [&](size_t j) {
      AppendChatEntry(positions[i][j], /*names_text=*/true, context, tokens, out);
      *out += '}';
    });
    *out += '}';
  });
  *out += '}';
  return absl::OkStatus();
}

std::string UsageJson(int64_t num_prompt_tokens, int64_t num_generated_tokens,
                      UsageDetails details) {
  return Concat("{\"prompt_tokens\":", num_prompt_tokens,
                ",\"total_tokens\":", num_prompt_tokens + num_generated_tokens,
                ",\"completion_tokens\":", num_generated_tokens,
                details == UsageDetails::kAll ? ",\"prompt_tokens_details\":null" : "",
                details == UsageDetails::kNone ? "}" : ",\"completion_tokens_details\":null}");
}

std::string UsageJson(const GenerationRequest& request,
                      const std::vector<InferenceResult>& results) {
  size_t num_generated = 0;
  for (const InferenceResult& result : results) num_generated += result.generated->ids.size();
  return UsageJson(request.NumPromptTokens(), static_cast<int64_t>(num_generated),
                   UsageDetails::kAll);
}

std::string SystemFingerprintJson(const ServedModel& model) {
  return JsonText(Concat("taopd-", kTeacherVersion, "-", model.revision));
}

std::string StopReasonJson(const GeneratedTokens& generated, std::optional<size_t> stop_string,
                           const GenerationRequest& request) {
  if (stop_string) return JsonText(request.stop[*stop_string]);
  // The model's own end of sequence is not reported.
  return EndsWithStopToken(generated, request) ? std::to_string(generated.ids.back()) : "null";
}

const char* FinishReasonName(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

int64_t EstimateAnswerBytes(const GenerationRequest& request, bool echo) {
  constexpr int64_t kBytesPerPromptEntry = 96;     // "<id>": logprob, rank and decoded_token
  constexpr int64_t kBytesPerLogprobsEntry = 128;  // "<token>":.., or with its bytes
  constexpr int64_t kBytesPerToken = 96;           // its share of text, tokens, offsets and ids
  constexpr int64_t kBytesPerCandidate = 28;
  constexpr int64_t kBytesPerChoice = 512 + kMaxStopStringBytes * 6;  // \u0000 for a byte
  int64_t bytes = 4096;
  for (const GenerationPrompt& prompt : request.prompts) {
    const int64_t num_input = static_cast<int64_t>(prompt.token_ids.size());
    const int64_t num_reported = prompt.max_new_tokens + (echo ? num_input : 0);
    int64_t choice_bytes = kBytesPerChoice + (num_input + prompt.max_new_tokens) * kBytesPerToken;
    if (request.prompt_logprobs) {
      choice_bytes += num_input * ((int64_t{*request.prompt_logprobs} + 1) * kBytesPerPromptEntry +
                                   request.scoring.num_candidates * kBytesPerCandidate);
    }
    if (request.logprobs)
      choice_bytes += num_reported * (int64_t{*request.logprobs} + 1) * kBytesPerLogprobsEntry;
    bytes += choice_bytes * request.n;
  }
  return bytes;
}

}  // namespace taopd
