#include "server/http/completion_response.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "server/http/generated_text.h"
#include "server/http/token_text.h"
#include "server/options/version.h"

namespace taopd {
namespace {

// One reported token of one position.
struct Entry {
  int32_t id;
  float log_prob;
  int32_t rank;
};
// The actual token first, then the top k by falling probability without it. Empty: nothing to
// report (the first token of a prompt).
using Position = std::vector<Entry>;

Position MakePosition(int32_t actual_id, float actual_log_prob, int32_t actual_rank,
                      const int32_t* top_ids, const float* top_log_probs, int32_t top_k) {
  Position position = {{actual_id, actual_log_prob, actual_rank}};
  for (int32_t j = 0; j < top_k; ++j) {
    if (top_ids[j] == actual_id) {
      position.front() = {actual_id, top_log_probs[j], j + 1};
    } else {
      position.push_back({top_ids[j], top_log_probs[j], j + 1});
    }
  }
  return position;
}

std::vector<Position> PromptPositions(const std::vector<int32_t>& token_ids,
                                      const std::optional<ScoreRows>& rows) {
  std::vector<Position> positions(token_ids.size());
  if (!rows) return positions;
  for (int64_t r = 0; r < rows->num_rows; ++r) {
    positions[r + 1] = MakePosition(token_ids[r + 1], rows->sampled_log_probs[r],
                                    rows->sampled_ranks[r], rows->ids.data() + r * rows->top_k,
                                    rows->log_probs.data() + r * rows->top_k, rows->top_k);
  }
  return positions;
}

std::vector<Position> GeneratedPositions(const GeneratedTokens& generated, int32_t top_k) {
  std::vector<Position> positions;
  for (size_t i = 0; i < generated.ids.size(); ++i) {
    positions.push_back(MakePosition(generated.ids[i], generated.raw_log_probs[i], 0,
                                     generated.top_ids.data() + i * top_k,
                                     generated.top_log_probs.data() + i * top_k, top_k));
  }
  return positions;
}

absl::Status CheckNumbers(const std::vector<Position>& positions) {
  for (size_t i = 0; i < positions.size(); ++i) {
    for (const Entry& entry : positions[i]) {
      if (std::isnan(entry.log_prob) || entry.log_prob == INFINITY) {
        return Internal("the log-probability of token ", entry.id, " at position ", i, " is ",
                        entry.log_prob);
      }
    }
  }
  return absl::OkStatus();
}

void AppendIds(const std::vector<int32_t>& ids, std::string* out) {
  *out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) *out += ',';
    *out += std::to_string(ids[i]);
  }
  *out += ']';
}

// The tokens before position i.
std::span<const int32_t> Before(const std::vector<int32_t>& ids, size_t i) {
  return std::span<const int32_t>(ids).first(i);
}

void AppendPromptLogprobs(const std::vector<int32_t>& token_ids,
                          const std::vector<Position>& positions, TokenText& tokens,
                          std::string* out) {
  *out += '[';
  for (size_t i = 0; i < positions.size(); ++i) {
    if (i > 0) *out += ',';
    if (positions[i].empty()) {
      *out += "null";
      continue;
    }
    char separator = '{';
    for (const Entry& entry : positions[i]) {
      *out += separator;
      separator = ',';
      *out += '"';
      *out += std::to_string(entry.id);
      *out += "\":{\"logprob\":";
      AppendLogprob(entry.log_prob, out);
      *out += ",\"rank\":" + std::to_string(entry.rank) + ",\"decoded_token\":";
      *out += tokens.DecodedTokenJson(entry.id, Before(token_ids, i));
      *out += '}';
    }
    *out += '}';
  }
  *out += ']';
}

// {"name":logprob,...}; equal names keep the first place and the last value, as Python's dict does.
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
    AppendJsonString(name, out);
    *out += ':';
    AppendLogprob(log_prob, out);
  }
  *out += '}';
}

// The `logprobs` object over `positions`, which belong to `token_ids`. The tokens in front of
// token_ids[first] are context only.
void AppendLogprobsObject(const std::vector<int32_t>& token_ids, size_t first,
                          const std::vector<Position>& positions, int32_t top_k, TokenText& tokens,
                          std::string* out) {
  std::string offsets, log_probs, names, tops;
  int64_t offset = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    const char* comma = i > 0 ? "," : "";
    const std::span<const int32_t> context = Before(token_ids, first + i);
    const std::string name = tokens.Name(token_ids[first + i], context);
    offsets += comma + std::to_string(offset);
    offset += NumCodePoints(name);
    names += comma;
    AppendJsonString(name, &names);
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
    const CompletionPrompt& prompt = request_.PromptOf(index);
    const bool hide_generated = request_.max_tokens == 0;
    std::vector<Position> prompt_positions;
    if (request_.prompt_logprobs) prompt_positions = PromptPositions(prompt.token_ids, rows);
    std::vector<Position> generated_positions;
    if (request_.logprobs && !hide_generated) {
      generated_positions = GeneratedPositions(generated, *request_.logprobs);
    }
    TAOPD_RETURN_IF_ERROR(CheckNumbers(prompt_positions));
    TAOPD_RETURN_IF_ERROR(CheckNumbers(generated_positions));

    std::string text = EchoedText(prompt);
    std::optional<size_t> stop_string;
    if (tokenizer_ != nullptr && !hide_generated) {
      const GeneratedText finished = FinishedText(generated, tokenizer_, request_);
      text += finished.text();
      stop_string = finished.stop_string();
    }
    *out += "{\"index\":" + std::to_string(index) + ",\"text\":";
    AppendJsonString(text, out);
    *out += ",\"logprobs\":";
    AppendLogprobs(prompt, generated, prompt_positions, generated_positions, out);
    *out += generated.finish == FinishReason::kStop && !hide_generated
                ? ",\"finish_reason\":\"stop\""
                : ",\"finish_reason\":\"length\"";
    *out += ",\"stop_reason\":";
    if (stop_string) {
      AppendJsonString(request_.stop[*stop_string], out);
    } else if (!hide_generated && EndsWithStopToken(generated, request_)) {
      *out += std::to_string(generated.ids.back());
    } else {
      *out += "null";  // also for the model's own end of sequence
    }
    *out += ",\"token_ids\":";
    AppendIdsOrNull(generated.ids, out);
    *out += ",\"prompt_logprobs\":";
    if (request_.prompt_logprobs) {
      AppendPromptLogprobs(prompt.token_ids, prompt_positions, plain_, out);
    } else {
      *out += "null";
    }
    *out += ",\"prompt_token_ids\":";
    AppendIdsOrNull(prompt.token_ids, out);
    *out += ",\"routed_experts\":null}";
    return absl::OkStatus();
  }

 private:
  std::string EchoedText(const CompletionPrompt& prompt) const {
    if (tokenizer_ == nullptr || !request_.echo || request_.return_token_ids) return "";
    return prompt.text ? *prompt.text
                       : tokenizer_->Decode(prompt.token_ids, request_.skip_special_tokens);
  }

  void AppendLogprobs(const CompletionPrompt& prompt, const GeneratedTokens& generated,
                      const std::vector<Position>& prompt_positions,
                      const std::vector<Position>& generated_positions, std::string* out) {
    if (!request_.logprobs) {
      *out += "null";
      return;
    }
    std::vector<int32_t> ids = prompt.token_ids;
    ids.insert(ids.end(), generated.ids.begin(), generated.ids.end());
    std::vector<Position> positions;
    if (request_.echo) positions = prompt_positions;
    positions.insert(positions.end(), generated_positions.begin(), generated_positions.end());
    const size_t first = request_.echo ? 0 : prompt.token_ids.size();
    AppendLogprobsObject(ids, first, positions, *request_.logprobs, named_, out);
  }

  void AppendIdsOrNull(const std::vector<int32_t>& ids, std::string* out) const {
    if (request_.return_token_ids) {
      AppendIds(ids, out);
    } else {
      *out += "null";
    }
  }

  const CompletionRequest& request_;
  const Tokenizer* const tokenizer_;
  TokenText plain_;  // decoded_token
  TokenText named_;  // the logprobs object
};

}  // namespace

absl::StatusOr<std::string> CompletionResponseJson(const CompletionRequest& request,
                                                   const ServedModel& model,
                                                   const std::vector<InferenceResult>& results,
                                                   int64_t created_unix_s) {
  std::string out = "{\"id\":";
  AppendJsonString("cmpl-" + request.request_id, &out);
  out += ",\"object\":\"text_completion\",\"created\":" + std::to_string(created_unix_s) +
         ",\"model\":";
  AppendJsonString(request.model, &out);
  out += ",\"choices\":[";
  ChoiceWriter choices(request, model);
  size_t num_prompt_tokens = 0, num_generated_tokens = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (i > 0) out += ',';
    const size_t first = i - i % static_cast<size_t>(request.n);
    TAOPD_RETURN_IF_ERROR(choices.Append(i, results[first].score, *results[i].generated, &out));
    if (i == first) num_prompt_tokens += request.PromptOf(i).token_ids.size();
    num_generated_tokens += results[i].generated->ids.size();
  }
  out += "],\"service_tier\":null,\"system_fingerprint\":";
  AppendJsonString(Concat("taopd-", kTeacherVersion, "-", model.revision.substr(0, 8)), &out);
  out += Concat(",\"usage\":{\"prompt_tokens\":", num_prompt_tokens,
                ",\"total_tokens\":", num_prompt_tokens + num_generated_tokens,
                ",\"completion_tokens\":", num_generated_tokens,
                ",\"prompt_tokens_details\":null,\"completion_tokens_details\":null}");
  out += ",\"kv_transfer_params\":null,\"ec_transfer_params\":null,\"metrics\":null}";
  return out;
}

int64_t EstimateResponseBytes(const CompletionRequest& request) {
  constexpr int64_t kBytesPerPromptEntry =
      96;  // {"<id>":{"logprob":..,"rank":..,"decoded_token":".."}}
  constexpr int64_t kBytesPerLogprobsEntry = 64;  // "<token>":..
  constexpr int64_t kBytesPerToken = 96;          // its share of text, tokens, offsets and ids
  constexpr int64_t kBytesPerChoice = 512 + kMaxStopStringBytes * 6;  // \u0000 for a byte
  int64_t bytes = 4096;
  for (const CompletionPrompt& prompt : request.prompts) {
    const int64_t num_input = static_cast<int64_t>(prompt.token_ids.size());
    const int64_t num_reported = prompt.max_new_tokens + (request.echo ? num_input : 0);
    int64_t choice_bytes = kBytesPerChoice + (num_input + prompt.max_new_tokens) * kBytesPerToken;
    if (request.prompt_logprobs)
      choice_bytes += num_input * (int64_t{*request.prompt_logprobs} + 1) * kBytesPerPromptEntry;
    if (request.logprobs)
      choice_bytes += num_reported * (int64_t{*request.logprobs} + 1) * kBytesPerLogprobsEntry;
    bytes += choice_bytes * request.n;
  }
  return bytes;
}

}  // namespace taopd
