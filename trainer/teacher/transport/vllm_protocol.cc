// vLLM's completions API. The two frontends of vLLM differ in the entries of prompt_logprobs:
//   Python: {"42": {"logprob": -1.25, "rank": 2, "decoded_token": "b"}, ...}
//   Rust:   {"token_id:42": -1.25, ...}
// An entry holds the k most probable tokens of a position and the actual one, that is, k or k+1
// tokens in an arbitrary order.
#include <absl/strings/numbers.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "common/io/jsonl.h"
#include "common/wire/vllm_log_prob.h"
#include "trainer/teacher/transport/teacher_protocols.h"

namespace taopd {
namespace {

constexpr std::string_view kTokenIdPrefix = "token_id:";

struct TokenLogProb {
  int32_t id = 0;
  float log_prob = 0;
};

absl::Status BadReply(const std::string& what) { return DataLoss("teacher reply: ", what); }

absl::StatusOr<TokenLogProb> ParseEntry(const std::string& key, const nlohmann::json& value) {
  TokenLogProb entry;
  std::string_view digits = key;
  if (digits.starts_with(kTokenIdPrefix)) digits.remove_prefix(kTokenIdPrefix.size());
  if (!absl::SimpleAtoi(absl::string_view(digits.data(), digits.size()), &entry.id)) {
    return BadReply(Concat("prompt_logprobs has the key \"", key.substr(0, 40),
                           "\", which is not a token id; return_tokens_as_token_ids is ignored"));
  }
  const nlohmann::json* number = &value;
  if (value.is_object()) {
    const auto found = value.find("logprob");
    if (found == value.end()) return BadReply("an entry of prompt_logprobs has no logprob");
    number = &*found;
  }
  if (!number->is_number()) return BadReply("a logprob of prompt_logprobs is not a number");
  const double log_prob = number->get<double>();
  entry.log_prob = log_prob <= kVllmLogOfZero ? -std::numeric_limits<float>::infinity()
                                              : static_cast<float>(log_prob);
  return entry;
}

// Appends one row to the scores: the k most probable tokens, and the actual one.
absl::Status AppendRow(const nlohmann::json& position, int32_t actual_id, int64_t top_k,
                       std::vector<TokenLogProb>* scratch, TeacherScores* scores) {
  if (!position.is_object()) return BadReply("a position of prompt_logprobs is not an object");
  scratch->clear();
  for (const auto& [key, value] : position.items()) {
    TAOPD_ASSIGN_OR_RETURN(scratch->emplace_back(), ParseEntry(key, value));
  }
  const auto num_entries = static_cast<int64_t>(scratch->size());
  if (num_entries < std::max<int64_t>(top_k, 1) || num_entries > top_k + 1) {
    return BadReply(Concat("a position of prompt_logprobs has ", num_entries,
                           " entries instead of ", top_k, " or ", top_k + 1));
  }
  const auto actual =
      std::ranges::find_if(*scratch, [&](const TokenLogProb& e) { return e.id == actual_id; });
  if (actual == scratch->end()) {
    return BadReply(Concat("prompt_logprobs lacks the token ", actual_id, " of the prompt"));
  }
  scores->sampled_log_probs.push_back(actual->log_prob);
  // If there is one entry too many, it is the actual token, which comes last among its equals.
  std::ranges::sort(*scratch, [&](const TokenLogProb& a, const TokenLogProb& b) {
    if (a.log_prob != b.log_prob) return a.log_prob > b.log_prob;
    if ((a.id == actual_id) != (b.id == actual_id)) return b.id == actual_id;
    return a.id < b.id;
  });
  for (int64_t j = 0; j < top_k; ++j) {
    scores->ids.push_back((*scratch)[j].id);
    scores->log_probs.push_back((*scratch)[j].log_prob);
  }
  scores->log_tail.push_back(std::numeric_limits<float>::quiet_NaN());
  return absl::OkStatus();
}

class VllmProtocol final : public HttpProtocol {
 public:
  std::string score_path() const override { return "/v1/completions"; }

  std::string RequestBody(const TeacherRequest& request, const std::string& model) const override {
    return nlohmann::json{{"model", model},
                          {"prompt", request.token_ids},
                          {"max_tokens", 1},  // vLLM has no request that generates none
                          {"temperature", 0},
                          {"prompt_logprobs", request.top_k},
                          {"return_tokens_as_token_ids", true}}
        .dump();
  }

  absl::StatusOr<TeacherScores> ParseReply(const std::string& body, const TeacherRequest& request,
                                           const std::string& model) const override {
    const auto reply = ParseJson(body, "teacher reply", INT64_MAX, MaxReplyValues(request));
    if (!reply.ok()) return DataLoss(reply.status().message());
    if (!reply->is_object()) return BadReply("not a JSON object");
    const auto choices = reply->find("choices");
    if (choices == reply->end() || !choices->is_array() || choices->size() != 1 ||
        !(*choices)[0].is_object()) {
      return BadReply("choices is not a list of one choice");
    }
    const nlohmann::json& choice = (*choices)[0];
    const auto positions = choice.find("prompt_logprobs");
    if (positions == choice.end() || !positions->is_array()) {
      return BadReply("the choice has no prompt_logprobs");
    }
    const auto num_tokens = static_cast<int64_t>(request.token_ids.size());
    if (static_cast<int64_t>(positions->size()) != num_tokens) {
      return BadReply(
          Concat("prompt_logprobs has ", positions->size(), " positions instead of ", num_tokens));
    }
    TeacherScores scores;
    scores.top_k = request.top_k;
    std::vector<TokenLogProb> scratch;
    for (int64_t t = request.score_start; t < num_tokens; ++t) {
      TAOPD_RETURN_IF_ERROR(
          AppendRow((*positions)[t], request.token_ids[t], request.top_k, &scratch, &scores));
    }
    scores.revision = model;
    const auto fingerprint = reply->find("system_fingerprint");
    if (fingerprint != reply->end() && fingerprint->is_string()) {
      scores.revision += " " + fingerprint->get<std::string>();
    }
    return scores;
  }

  absl::Status ExplainRefusal(const absl::Status& error,
                              const TeacherRequest& request) const override {
    const std::string words(error.message());
    if (words.find("prompt_logprobs") == std::string::npos &&
        words.find("prompt logprobs") == std::string::npos) {
      return error;
    }
    return InvalidArgument("the server refuses top_k ", request.top_k,
                           ": start vLLM with --max-logprobs ", request.top_k,
                           " or more, or lower teacher.top_k; it says: ", words);
  }

  int64_t MaxReplyBytes(const TeacherRequest& request) const override {
    constexpr int64_t kEntryBytes = 192;  // {"<id>":{"logprob":..,"rank":..,"decoded_token":".."}}
    const auto num_tokens = static_cast<int64_t>(request.token_ids.size());
    return 65536 + num_tokens * (int64_t{request.top_k} + 1) * kEntryBytes;
  }
};

}  // namespace

std::unique_ptr<HttpProtocol> MakeVllmProtocol() { return std::make_unique<VllmProtocol>(); }

}  // namespace taopd
