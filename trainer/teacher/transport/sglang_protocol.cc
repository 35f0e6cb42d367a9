// SGLang's /generate. A reply's meta_info holds, from logprob_start_len on:
//   input_token_logprobs  [[null, 11, null], [-1.2, 22, null], ...]     the actual tokens
//   input_top_logprobs    [null, [[-0.3, 7, null], ...], ...]           exactly k, best first
// The first position of both has no score, so the request starts one position early.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/io/jsonl.h"
#include "trainer/teacher/transport/teacher_protocols.h"

namespace taopd {
namespace {

absl::Status BadSglangReply(const std::string& what) {
  return DataLoss("teacher reply: meta_info: ", what);
}

// A triple of log-prob, id and text.
struct SglangEntry {
  float log_prob = 0;
  int32_t id = 0;
};

absl::StatusOr<SglangEntry> ParseTriple(const nlohmann::json& triple) {
  if (!triple.is_array() || triple.size() < 2 || !triple[0].is_number() ||
      !triple[1].is_number_integer()) {
    return BadSglangReply("an entry is not [log-prob, id, text]");
  }
  const int64_t id = triple[1].get<int64_t>();
  if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
    return BadSglangReply(Concat("id ", id, " is outside [0, 2^31)"));
  }
  return SglangEntry{static_cast<float>(triple[0].get<double>()), static_cast<int32_t>(id)};
}

// Returns the list `name` of meta_info, which has one entry for each row and one before them.
absl::StatusOr<const nlohmann::json*> RowsOf(const nlohmann::json& meta, const char* name,
                                             int64_t num_rows) {
  const auto found = meta.find(name);
  if (found == meta.end() || !found->is_array()) return BadSglangReply(Concat("no ", name));
  if (static_cast<int64_t>(found->size()) != num_rows + 1) {
    return BadSglangReply(
        Concat(name, " has ", found->size(), " positions instead of ", num_rows + 1));
  }
  return &*found;
}

class SglangProtocol final : public HttpProtocol {
 public:
  std::string score_path() const override { return "/generate"; }

  std::string RequestBody(const TeacherRequest& request, const std::string&) const override {
    return nlohmann::json{
        {"input_ids", request.token_ids},
        {"sampling_params",
         {{"temperature", 1.0}, {"max_new_tokens", 0}, {"skip_special_tokens", false}}},
        {"return_logprob", true},
        {"logprob_start_len", request.score_start - 1},
        {"top_logprobs_num", request.top_k}}
        .dump();
  }

  absl::StatusOr<TeacherScores> ParseReply(const std::string& body, const TeacherRequest& request,
                                           const std::string& model) const override {
    const auto reply = ParseJson(body, "teacher reply", INT64_MAX, MaxReplyValues(request));
    if (!reply.ok()) return DataLoss(reply.status().message());
    if (!reply->is_object() || !reply->contains("meta_info") ||
        !reply->at("meta_info").is_object()) {
      return DataLoss("teacher reply: not a JSON object with meta_info");
    }
    const nlohmann::json& meta = reply->at("meta_info");
    const int64_t num_rows = request.num_rows();
    TAOPD_ASSIGN_OR_RETURN(const nlohmann::json* actual,
                           RowsOf(meta, "input_token_logprobs", num_rows));
    const nlohmann::json* top = nullptr;
    if (request.top_k > 0) {
      TAOPD_ASSIGN_OR_RETURN(top, RowsOf(meta, "input_top_logprobs", num_rows));
    }
    TeacherScores scores;
    scores.top_k = request.top_k;
    for (int64_t r = 0; r < num_rows; ++r) {
      TAOPD_ASSIGN_OR_RETURN(const SglangEntry entry, ParseTriple((*actual)[r + 1]));
      if (entry.id != request.token_ids[request.score_start + r]) {
        return BadSglangReply(Concat("input_token_logprobs has the id ", entry.id, " at row ", r,
                                     " instead of the prompt's ",
                                     request.token_ids[request.score_start + r]));
      }
      scores.sampled_log_probs.push_back(entry.log_prob);
      scores.log_tail.push_back(std::numeric_limits<float>::quiet_NaN());
      if (top == nullptr) continue;
      const nlohmann::json& row = (*top)[r + 1];
      if (!row.is_array() || static_cast<int64_t>(row.size()) != request.top_k) {
        return BadSglangReply(
            Concat("input_top_logprobs does not have ", request.top_k, " entries at row ", r));
      }
      for (const nlohmann::json& triple : row) {
        TAOPD_ASSIGN_OR_RETURN(const SglangEntry best, ParseTriple(triple));
        scores.ids.push_back(best.id);
        scores.log_probs.push_back(best.log_prob);
      }
    }
    scores.revision = model;
    const auto version = meta.find("weight_version");
    if (version != meta.end() && version->is_string()) {
      scores.revision += " " + version->get<std::string>();
    }
    return scores;
  }

  int64_t MaxReplyBytes(const TeacherRequest& request) const override {
    constexpr int64_t kTripleBytes = 128;
    const auto num_tokens = static_cast<int64_t>(request.token_ids.size());
    const int64_t num_triples = (request.num_rows() + 1) * (int64_t{request.top_k} + 1);
    return 65536 + num_tokens * 16 + num_triples * kTripleBytes;
  }
};

}  // namespace

std::unique_ptr<HttpProtocol> MakeSglangProtocol() { return std::make_unique<SglangProtocol>(); }

}  // namespace taopd
