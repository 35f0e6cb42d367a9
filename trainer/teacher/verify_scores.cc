#include "trainer/teacher/verify_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace taopd {
namespace {

// What one row says; k ids by falling probability.
struct Row {
  int64_t index;
  std::span<const int32_t> ids_k;
  std::span<const float> log_probs_k;
  float log_tail;
  float sampled_log_prob;
  int32_t sampled_id;
};

template <typename... Parts>
absl::Status BadRow(const Row& row, const Parts&... parts) {
  return DataLoss("teacher reply, row ", row.index, ": ", parts...);
}

bool IsLogProb(float value) { return value <= kLogProbSlack; }  // false for NaN; -inf is legal

absl::Status VerifyIds(const Row& row, int64_t head_vocab_size, std::vector<int32_t>* scratch) {
  for (const int32_t id : row.ids_k) {
    if (id < 0 || id >= head_vocab_size) {
      return BadRow(row, "id ", id, " is outside [0, ", head_vocab_size, ")");
    }
  }
  scratch->assign(row.ids_k.begin(), row.ids_k.end());
  std::sort(scratch->begin(), scratch->end());
  const auto twice = std::adjacent_find(scratch->begin(), scratch->end());
  if (twice != scratch->end()) return BadRow(row, "id ", *twice, " stands twice");
  return absl::OkStatus();
}

absl::Status VerifyDistribution(const Row& row) {
  double mass = std::exp(static_cast<double>(row.log_tail));
  for (size_t j = 0; j < row.log_probs_k.size(); ++j) {
    const float log_prob = row.log_probs_k[j];
    if (!IsLogProb(log_prob)) return BadRow(row, "logprobs[", j, "] is ", log_prob);
    if (j > 0 && log_prob > row.log_probs_k[j - 1]) {
      return BadRow(row, "logprobs[", j, "] ", log_prob, " is above the one before, ",
                    row.log_probs_k[j - 1]);
    }
    mass += std::exp(static_cast<double>(log_prob));
  }
  if (!IsLogProb(row.log_tail)) return BadRow(row, "log_tail is ", row.log_tail);
  if (std::abs(mass - 1.0) > kMassSlack) {
    return BadRow(row, "ids and tail have the mass ", mass, " instead of 1");
  }
  return absl::OkStatus();
}

absl::Status VerifySampled(const Row& row) {
  const float sampled = row.sampled_log_prob;
  if (!IsLogProb(sampled)) return BadRow(row, "sampled_logprobs is ", sampled);
  const auto found = std::find(row.ids_k.begin(), row.ids_k.end(), row.sampled_id);
  if (found != row.ids_k.end()) {
    const float expected = row.log_probs_k[found - row.ids_k.begin()];
    const bool is_equal = sampled == expected || std::abs(sampled - expected) <= kLogProbSlack;
    if (!is_equal) {
      return BadRow(row, "sampled_logprobs ", sampled, " contradicts logprobs ", expected,
                    " of the same id ", row.sampled_id);
    }
    return absl::OkStatus();
  }
  // Outside of the row's ids: no more than the least of them, and a part of the tail.
  const float least =
      row.log_probs_k.empty() ? std::numeric_limits<float>::infinity() : row.log_probs_k.back();
  if (sampled > least + kLogProbSlack) {
    return BadRow(row, "sampled_logprobs ", sampled, " of id ", row.sampled_id,
                  " is above the last of the ids, ", least);
  }
  // As probabilities: a tail that was computed as 1 minus a sum is inexact where it is small.
  if (std::exp(static_cast<double>(sampled)) >
      std::exp(static_cast<double>(row.log_tail)) + kMassSlack) {
    return BadRow(row, "sampled_logprobs ", sampled, " of id ", row.sampled_id,
                  " is above log_tail ", row.log_tail);
  }
  return absl::OkStatus();
}

absl::Status VerifyCount(const char* field, size_t size, int64_t expected) {
  if (static_cast<int64_t>(size) == expected) return absl::OkStatus();
  return DataLoss("teacher reply: ", field, " has ", size, " values instead of ", expected);
}

}  // namespace

absl::Status VerifyTeacherRequest(const TeacherRequest& request, const TeacherInfo& info) {
  const int64_t num_tokens = static_cast<int64_t>(request.token_ids.size());
  if (num_tokens > info.max_model_len) {
    return InvalidArgument("token_ids has ", num_tokens, " tokens; the teacher's max_model_len is ",
                           info.max_model_len);
  }
  if (request.score_start < 1 || request.score_start >= num_tokens) {
    return InvalidArgument("score_start ", request.score_start, " is outside [1, ", num_tokens,
                           "), the number of tokens");
  }
  if (request.top_k < 0 || request.top_k > info.max_top_k) {
    return InvalidArgument("top_k ", request.top_k, " is outside [0, ", info.max_top_k,
                           "], the teacher's max_top_k");
  }
  if (!std::isfinite(request.temperature) || request.temperature <= 0) {
    return InvalidArgument("temperature ", request.temperature, " is not a positive number");
  }
  if (request.temperature != 1.0f && !info.supports_temperature) {
    return InvalidArgument("temperature ", request.temperature,
                           ": this teacher supports only temperature 1");
  }
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (request.token_ids[t] < 0 || request.token_ids[t] >= info.head_vocab_size) {
      return InvalidArgument("token_ids[", t, "] ", request.token_ids[t], " is outside [0, ",
                             info.head_vocab_size, "), the teacher's head_vocab_size");
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyTeacherScores(const TeacherScores& scores, const TeacherRequest& request,
                                 const TeacherInfo& info) {
  const int64_t num_rows = static_cast<int64_t>(request.token_ids.size()) - request.score_start;
  const int64_t k = request.top_k;
  if (scores.revision != info.revision) {
    return DataLoss("teacher reply: revision \"", scores.revision, "\" instead of \"",
                    info.revision, "\"");
  }
  if (scores.top_k != k) {
    return DataLoss("teacher reply: top_k is ", scores.top_k, " instead of ", k);
  }
  TAOPD_RETURN_IF_ERROR(VerifyCount("ids", scores.ids.size(), num_rows * k));
  TAOPD_RETURN_IF_ERROR(VerifyCount("logprobs", scores.log_probs.size(), num_rows * k));
  TAOPD_RETURN_IF_ERROR(VerifyCount("log_tail", scores.log_tail.size(), num_rows));
  TAOPD_RETURN_IF_ERROR(VerifyCount("sampled_logprobs", scores.sampled_log_probs.size(), num_rows));

  std::vector<int32_t> scratch;
  for (int64_t r = 0; r < num_rows; ++r) {
    const Row row{r,
                  std::span(scores.ids).subspan(r * k, k),
                  std::span(scores.log_probs).subspan(r * k, k),
                  scores.log_tail[r],
                  scores.sampled_log_probs[r],
                  request.token_ids[request.score_start + r]};
    TAOPD_RETURN_IF_ERROR(VerifyIds(row, info.head_vocab_size, &scratch));
    TAOPD_RETURN_IF_ERROR(VerifyDistribution(row));
    TAOPD_RETURN_IF_ERROR(VerifySampled(row));
  }
  return absl::OkStatus();
}

}  // namespace taopd
