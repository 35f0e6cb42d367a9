#include "server/http/protocols/protocols.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/generation/engine_requests.h"
#include "server/generation/generation.h"
#include "server/generation/request_fields.h"
#include "server/http/request/common_fields.h"
#include "server/http/request/request_body.h"
#include "server/http/response/answer_json.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kDefaultTopLogprobs = 100;  // TRL's
constexpr size_t kMaxSequences = 1024;
constexpr char kSequences[] = "sequences";
constexpr char kLengths[] = "prompt_lengths";

absl::Status ReadSequences(JsonFields& fields, const ServedModel& model,
                           SequenceLogprobsRequest* request) {
  const ordered_json* sequences = fields.Find(kSequences);
  request->prompt_lengths = fields.Integers(kLengths);
  TAOPD_RETURN_IF_ERROR(fields.error());
  if (sequences == nullptr || !sequences->is_array() || sequences->empty())
    return WrongType(kSequences, "a non-empty list of lists of token ids");
  if (sequences->size() > kMaxSequences) {
    return FieldStatus(kSequences, Concat(kSequences, " holds ", sequences->size(),
                                          " sequences, at most ", kMaxSequences, " are allowed"));
  }
  if (sequences->size() != request->prompt_lengths.size()) {
    return FieldStatus(kLengths,
                       Concat(kSequences, " and ", kLengths, " must have the same length, ",
                              sequences->size(), " is not ", request->prompt_lengths.size()));
  }
  for (size_t i = 0; i < sequences->size(); ++i) {
    const ordered_json& ids = (*sequences)[i];
    if (!ids.is_array()) return WrongType(kSequences, "a list of lists of token ids");
    const int64_t length = request->prompt_lengths[i];
    if (length < 0 || length > static_cast<int64_t>(ids.size())) {
      return FieldStatus(kLengths, Concat("sequence ", i, " has prompt_length ", length,
                                          ", which is not between 0 and its length ", ids.size()));
    }
    TAOPD_RETURN_IF_ERROR(AddPromptIds(ids, kSequences, model, request));
    // Nothing precedes the first token.
    request->prompts.back().score_start = std::max<int64_t>(length, 1);
  }
  return absl::OkStatus();
}

struct Arrays {
  int64_t max_len = 0;
  int64_t k = 0;
  std::vector<float> log_probs, actual_log_probs;  // [B, max_len, k], [B, max_len, 1]
  std::vector<int32_t> ids, actual_ids;
};

// Copies the rows into arrays, which are padded with -inf and 0.
Arrays MakeArrays(const SequenceLogprobsRequest& request, const PromptScores& rows) {
  Arrays arrays;
  arrays.k = *request.prompt_logprobs;
  const size_t num_sequences = request.prompts.size();
  for (size_t i = 0; i < num_sequences; ++i) {
    arrays.max_len =
        std::max(arrays.max_len, static_cast<int64_t>(request.prompts[i].token_ids.size()) -
                                     request.prompt_lengths[i]);
  }
  constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
  const size_t num_cells = num_sequences * static_cast<size_t>(arrays.max_len);
  arrays.log_probs.assign(num_cells * static_cast<size_t>(arrays.k), kMinusInf);
  arrays.ids.assign(num_cells * static_cast<size_t>(arrays.k), 0);
  arrays.actual_log_probs.assign(num_cells, kMinusInf);
  arrays.actual_ids.assign(num_cells, 0);
  for (size_t i = 0; i < num_sequences; ++i) {
    const GenerationPrompt& prompt = request.prompts[i];
    const int64_t length = request.prompt_lengths[i];
    for (int64_t t = std::max(length, prompt.score_start);
         rows[i] && t < static_cast<int64_t>(prompt.token_ids.size()); ++t) {
      const int64_t r = t - prompt.score_start;
      const int64_t cell = static_cast<int64_t>(i) * arrays.max_len + t - length;
      arrays.actual_log_probs[cell] = rows[i]->sampled_log_probs[r];
      arrays.actual_ids[cell] = prompt.token_ids[t];
      std::copy_n(rows[i]->log_probs.begin() + r * arrays.k, arrays.k,
                  arrays.log_probs.begin() + cell * arrays.k);
      std::copy_n(rows[i]->ids.begin() + r * arrays.k, arrays.k,
                  arrays.ids.begin() + cell * arrays.k);
    }
  }
  return arrays;
}

std::string BinaryJson(const SequenceLogprobsRequest& request, const PromptScores& rows) {
  const Arrays arrays = MakeArrays(request, rows);
  std::string out = "{\"logprobs_b64\":" + Base64Json(arrays.log_probs) +
                    ",\"token_ids_b64\":" + Base64Json(arrays.ids) +
                    ",\"actual_logprobs_b64\":" + Base64Json(arrays.actual_log_probs) +
                    ",\"actual_token_ids_b64\":" + Base64Json(arrays.actual_ids);
  out += Concat(",\"shape\":[", request.prompts.size(), ",", arrays.max_len, ",", arrays.k,
                "],\"completion_lengths\":");
  AppendList(request.prompts.size(), &out, [&](size_t i) {
    out += Concat(static_cast<int64_t>(request.prompts[i].token_ids.size()) -
                  request.prompt_lengths[i]);
  });
  return out + "}";
}

// Returns the entries in order of rank: the top k, then the actual token unless it is among them.
Position SortedByRank(Position sorted) {
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const PositionEntry& a, const PositionEntry& b) { return a.rank < b.rank; });
  return sorted;
}

absl::StatusOr<std::string> SequenceLogprobsJson(const SequenceLogprobsRequest& request,
                                                 const PromptScores& rows) {
  for (const std::optional<ScoreRows>& part : rows) {
    if (!part) continue;
    TAOPD_RETURN_IF_ERROR(CheckNumbers(part->log_probs));
    TAOPD_RETURN_IF_ERROR(CheckNumbers(part->sampled_log_probs));
  }
  if (request.binary) return BinaryJson(request, rows);
  std::string out;
  const auto append = [&](const char* name, const auto& append_entry) {
    out += name;
    AppendList(request.prompts.size(), &out, [&](size_t i) {
      const GenerationPrompt& prompt = request.prompts[i];
      const std::vector<Position> positions =
          PromptPositions(prompt.token_ids, prompt.score_start, rows[i]);
      const auto length = static_cast<size_t>(request.prompt_lengths[i]);
      AppendList(positions.size() - length, &out, [&](size_t t) {
        const Position sorted = SortedByRank(positions[length + t]);
        AppendList(sorted.size(), &out, [&](size_t j) { append_entry(sorted[j]); });
      });
    });
  };
  append("{\"logprobs\":",
         [&](const PositionEntry& entry) { AppendLogprob(entry.log_prob, &out); });
  append(",\"logprob_token_ids\":",
         [&](const PositionEntry& entry) { out += std::to_string(entry.id); });
  return out + "}";
}

}  // namespace

absl::Status ReadSequenceLogprobs(JsonFields& fields, const ServedModel& model,
                                  SequenceLogprobsRequest* request) {
  request->request_id = RandomRequestId();
  request->max_tokens = 0;
  const std::string format = fields.Text("response_format").value_or("json");
  TAOPD_RETURN_IF_ERROR(
      ReadLogprobs(fields, "top_logprobs", "prompt", model, &request->prompt_logprobs));
  if (!request->prompt_logprobs) {
    request->prompt_logprobs =
        static_cast<int32_t>(std::min<int64_t>(kDefaultTopLogprobs, model.limits.max_logprobs));
  }
  if (format != "json" && format != "binary") {
    return FieldError("response_format", "response_format must be \"json\" or \"binary\".");
  }
  request->binary = format == "binary";
  TAOPD_RETURN_IF_ERROR(ReadSequences(fields, model, request));
  return FinishPrompts(model, /*echo_only=*/false, request);
}

absl::StatusOr<Answer> RunSequenceLogprobs(const std::string& body, const Caller& caller,
                                           ServingState& state) {
  TAOPD_ASSIGN_OR_RETURN(const auto model, state.Admit());
  SequenceLogprobsRequest request;
  TAOPD_RETURN_IF_ERROR(ReadBodyInTurn(
      body, caller, state, "/get_sequence_logprobs/",
      [&](JsonFields& fields) { return ReadSequenceLogprobs(fields, *model, &request); }));
  // Padding makes all sequences as long as the longest.
  int64_t max_len = 0;
  for (const GenerationPrompt& prompt : request.prompts)
    max_len = std::max(max_len, static_cast<int64_t>(prompt.token_ids.size()));
  const int64_t padded_bytes =
      max_len * static_cast<int64_t>(request.prompts.size()) * (*request.prompt_logprobs + 1) * 24;
  TAOPD_ASSIGN_OR_RETURN(
      auto memory,
      ReserveMemory(request, {.whole = EstimateAnswerBytes(request, /*echo=*/false) + padded_bytes},
                    *model, caller, &state));
  caller.hold_memory(std::move(memory));
  TAOPD_ASSIGN_OR_RETURN(const PromptScores rows, ScorePrompts(request, caller, model));
  return SequenceLogprobsJson(request, rows);
}

}  // namespace taopd
