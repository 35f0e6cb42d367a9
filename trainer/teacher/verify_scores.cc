#include "trainer/teacher/verify_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "common/wire/teacher_protocol.h"

namespace taopd {
namespace {

// One row of a reply, with k ids in descending order of probability.
struct Row {
  int64_t index;
  std::span<const int32_t> ids_k;
  std::span<const float> log_probs_k;
  float log_tail;
  float sampled_log_prob;
  int32_t sampled_id;
  std::span<const int32_t> candidate_ids_m;
  std::span<const float> candidate_log_probs_m;
  float candidate_log_tail;
  std::span<const float> dense_log_probs_v;
  bool has_tail;
};

template <typename... Parts>
absl::Status BadRow(const Row& row, const Parts&... parts) {
  return DataLoss("teacher reply, row ", row.index, ": ", parts...);
}

bool IsLogProb(float value) { return value <= kLogProbSlack; }  // false for NaN; -inf is legal

// Returns whether two values of the same log-prob in a reply agree.
bool AreEqual(float a, float b) { return a == b || std::abs(a - b) <= kLogProbSlack; }

// Returns the first number that is not an id of the teacher.
int64_t EndOfIds(const TeacherInfo& info) {
  return info.head_vocab_size > 0 ? info.head_vocab_size : std::numeric_limits<int32_t>::max();
}

absl::Status VerifyIds(const Row& row, int64_t end_of_ids, std::vector<int32_t>* scratch) {
  for (const int32_t id : row.ids_k) {
    if (id < 0 || id >= end_of_ids) {
      return BadRow(row, "id ", id, " is outside [0, ", end_of_ids, ")");
    }
  }
  scratch->assign(row.ids_k.begin(), row.ids_k.end());
  std::ranges::sort(*scratch);
  const auto twice = std::ranges::adjacent_find(*scratch);
  if (twice != scratch->end()) return BadRow(row, "id ", *twice, " occurs twice");
  return absl::OkStatus();
}

double MassOfIds(const Row& row) {
  double mass = 0;
  for (const float log_prob : row.log_probs_k) mass += std::exp(static_cast<double>(log_prob));
  return mass;
}

// Returns the log-prob of an id, if it is among the row's ids.
std::optional<float> LogProbOfId(const Row& row, int32_t id) {
  const auto found = std::ranges::find(row.ids_k, id);
  if (found == row.ids_k.end()) return std::nullopt;
  return row.log_probs_k[found - row.ids_k.begin()];
}

absl::Status VerifyDistribution(const Row& row) {
  for (size_t j = 0; j < row.log_probs_k.size(); ++j) {
    const float log_prob = row.log_probs_k[j];
    if (!IsLogProb(log_prob)) return BadRow(row, "logprobs[", j, "] is ", log_prob);
    if (j > 0 && log_prob > row.log_probs_k[j - 1]) {
      return BadRow(row, "logprobs[", j, "] ", log_prob, " is above the one before, ",
                    row.log_probs_k[j - 1]);
    }
  }
  double mass = MassOfIds(row);
  if (!row.has_tail) {
    if (!std::isnan(row.log_tail)) {
      return BadRow(row, "log_tail is ", row.log_tail, " of a teacher that sends none");
    }
    if (mass > 1.0 + kMassSlack) return BadRow(row, "ids have the mass ", mass, ", above 1");
    return absl::OkStatus();
  }
  if (!IsLogProb(row.log_tail)) return BadRow(row, "log_tail is ", row.log_tail);
  mass += std::exp(static_cast<double>(row.log_tail));
  if (std::abs(mass - 1.0) > kMassSlack) {
    return BadRow(row, "ids and tail have the mass ", mass, " instead of 1");
  }
  return absl::OkStatus();
}

absl::Status VerifySampled(const Row& row) {
  const float sampled = row.sampled_log_prob;
  if (!IsLogProb(sampled)) return BadRow(row, "sampled_logprobs is ", sampled);
  if (const auto expected = LogProbOfId(row, row.sampled_id)) {
    if (AreEqual(sampled, *expected)) return absl::OkStatus();
    return BadRow(row, "sampled_logprobs ", sampled, " contradicts logprobs ", *expected,
                  " of the same id ", row.sampled_id);
  }
  // An id outside the row's ids is at most as probable as the least of them, and part of the tail.
  const float least =
      row.log_probs_k.empty() ? std::numeric_limits<float>::infinity() : row.log_probs_k.back();
  if (sampled > least + kLogProbSlack) {
    return BadRow(row, "sampled_logprobs ", sampled, " of id ", row.sampled_id,
                  " is above the last of the ids, ", least);
  }
  // Compare probabilities, because a small tail that was computed as 1 minus a sum is inexact.
  const double tail =
      row.has_tail ? std::exp(static_cast<double>(row.log_tail)) : 1.0 - MassOfIds(row);
  if (std::exp(static_cast<double>(sampled)) > tail + kMassSlack) {
    return BadRow(row, "sampled_logprobs ", sampled, " of id ", row.sampled_id,
                  " is above log_tail ", std::log(std::max(tail, 0.0)));
  }
  return absl::OkStatus();
}

absl::Status VerifyCandidates(const Row& row) {
  if (!IsLogProb(row.candidate_log_tail)) {
    return BadRow(row, "candidate_log_tail is ", row.candidate_log_tail);
  }
  double mass = MassOfIds(row) + std::exp(static_cast<double>(row.candidate_log_tail));
  for (size_t j = 0; j < row.candidate_ids_m.size(); ++j) {
    const int32_t id = row.candidate_ids_m[j];
    const float log_prob = row.candidate_log_probs_m[j];
    if (!IsLogProb(log_prob)) return BadRow(row, "candidate_logprobs[", j, "] is ", log_prob);
    if (id == row.sampled_id && !AreEqual(log_prob, row.sampled_log_prob)) {
      return BadRow(row, "candidate_logprobs ", log_prob, " contradicts sampled_logprobs ",
                    row.sampled_log_prob, " of the same id ", id);
    }
    if (const auto expected = LogProbOfId(row, id)) {
      if (AreEqual(log_prob, *expected)) continue;
      return BadRow(row, "candidate_logprobs ", log_prob, " contradicts logprobs ", *expected,
                    " of the same id ", id);
    }
    if (!row.log_probs_k.empty() && log_prob > row.log_probs_k.back() + kLogProbSlack) {
      return BadRow(row, "candidate_logprobs ", log_prob, " of id ", id,
                    " is above the last of the ids, ", row.log_probs_k.back());
    }
    const auto before = row.candidate_ids_m.begin() + static_cast<std::ptrdiff_t>(j);
    if (std::find(row.candidate_ids_m.begin(), before, id) == before) {
      mass += std::exp(static_cast<double>(log_prob));
    }
  }
  if (std::abs(mass - 1.0) > kMassSlack) {
    return BadRow(row, "ids, candidates and their tail have the mass ", mass, " instead of 1");
  }
  return absl::OkStatus();
}

absl::Status VerifyDense(const Row& row) {
  double mass = 0;
  for (size_t v = 0; v < row.dense_log_probs_v.size(); ++v) {
    const float log_prob = row.dense_log_probs_v[v];
    if (!IsLogProb(log_prob)) return BadRow(row, "dense_logprobs[", v, "] is ", log_prob);
    mass += std::exp(static_cast<double>(log_prob));
  }
  if (std::abs(mass - 1.0) > kMassSlack) {
    return BadRow(row, "dense_logprobs have the mass ", mass, " instead of 1");
  }
  const auto verify_entry = [&](int32_t id, float expected) {
    const float log_prob = row.dense_log_probs_v[id];
    if (AreEqual(log_prob, expected)) return absl::OkStatus();
    return BadRow(row, "dense_logprobs ", log_prob, " contradicts ", expected, " of the same id ",
                  id);
  };
  for (size_t j = 0; j < row.ids_k.size(); ++j) {
    TAOPD_RETURN_IF_ERROR(verify_entry(row.ids_k[j], row.log_probs_k[j]));
  }
  return verify_entry(row.sampled_id, row.sampled_log_prob);
}

absl::Status VerifyCount(const char* field, size_t size, int64_t expected) {
  if (static_cast<int64_t>(size) == expected) return absl::OkStatus();
  return DataLoss("teacher reply: ", field, " has ", size, " values instead of ", expected);
}

}  // namespace

int64_t ScoreReplyBytes(const TeacherRequest& request, const TeacherInfo& info) {
  return ScoreReplyArrayBytes({.top_k = request.top_k,
                               .num_candidates = request.num_candidates,
                               .entropy = request.entropy,
                               .rank = false,  // this client requests neither
                               .support_stats = false,
                               .dense_vocab_size = request.dense ? info.head_vocab_size : 0},
                              request.num_rows());
}

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
  if (request.num_candidates < 0 || request.num_candidates > info.max_candidates) {
    return InvalidArgument("num_candidates ", request.num_candidates, " is outside [0, ",
                           info.max_candidates, "], the teacher's max_candidates");
  }
  const int64_t num_candidate_ids = request.num_rows() * request.num_candidates;
  if (static_cast<int64_t>(request.candidate_ids.size()) != num_candidate_ids) {
    return InvalidArgument("candidate_ids has ", request.candidate_ids.size(),
                           " ids; num_candidates ", request.num_candidates, " needs ",
                           num_candidate_ids);
  }
  for (size_t i = 0; i < request.candidate_ids.size(); ++i) {
    const int32_t id = request.candidate_ids[i];
    if (id < 0 || id >= info.head_vocab_size) {
      return InvalidArgument("candidate_ids[", i, "] ", id, " is outside [0, ",
                             info.head_vocab_size, "), the teacher's head_vocab_size");
    }
  }
  if (request.entropy && !info.supports_entropy) {
    return InvalidArgument("entropy: this teacher sends none");
  }
  if (request.dense && info.max_dense_vocab_size == 0) {
    return InvalidArgument("dense: this teacher sends no dense log-probs");
  }
  if (request.dense && info.head_vocab_size > info.max_dense_vocab_size) {
    return InvalidArgument("dense: the teacher's head_vocab_size ", info.head_vocab_size,
                           " exceeds its max_dense_vocab_size ", info.max_dense_vocab_size);
  }
  for (int64_t t = 0; t < num_tokens; ++t) {
    if (request.token_ids[t] < 0 || request.token_ids[t] >= EndOfIds(info)) {
      return InvalidArgument("token_ids[", t, "] ", request.token_ids[t], " is outside [0, ",
                             EndOfIds(info), "), the teacher's head_vocab_size");
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyTeacherScores(const TeacherScores& scores, const TeacherRequest& request,
                                 const TeacherInfo& info) {
  const int64_t num_rows = request.num_rows();
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

  const int64_t m = request.num_candidates;
  const int64_t dense = request.dense ? info.head_vocab_size : 0;
  TAOPD_RETURN_IF_ERROR(
      VerifyCount("candidate_logprobs", scores.candidate_log_probs.size(), num_rows * m));
  TAOPD_RETURN_IF_ERROR(
      VerifyCount("candidate_log_tail", scores.candidate_log_tail.size(), m > 0 ? num_rows : 0));
  TAOPD_RETURN_IF_ERROR(
      VerifyCount("dense_logprobs", scores.dense_log_probs.size(), num_rows * dense));
  TAOPD_RETURN_IF_ERROR(
      VerifyCount("entropy", scores.entropy.size(), request.entropy ? num_rows : 0));
  const double max_entropy = std::log(static_cast<double>(info.head_vocab_size));

  std::vector<int32_t> scratch;
  for (int64_t r = 0; r < num_rows; ++r) {
    const Row row{r,
                  std::span(scores.ids).subspan(r * k, k),
                  std::span(scores.log_probs).subspan(r * k, k),
                  scores.log_tail[r],
                  scores.sampled_log_probs[r],
                  request.token_ids[request.score_start + r],
                  std::span(request.candidate_ids).subspan(r * m, m),
                  std::span(scores.candidate_log_probs).subspan(r * m, m),
                  m > 0 ? scores.candidate_log_tail[r] : 0.0f,
                  std::span(scores.dense_log_probs).subspan(r * dense, dense),
                  info.sends_tail};
    TAOPD_RETURN_IF_ERROR(VerifyIds(row, EndOfIds(info), &scratch));
    TAOPD_RETURN_IF_ERROR(VerifyDistribution(row));
    TAOPD_RETURN_IF_ERROR(VerifySampled(row));
    if (m > 0) TAOPD_RETURN_IF_ERROR(VerifyCandidates(row));
    if (request.dense) TAOPD_RETURN_IF_ERROR(VerifyDense(row));
    if (request.entropy &&
        !(scores.entropy[r] >= 0 && scores.entropy[r] <= max_entropy + kLogProbSlack)) {
      return BadRow(row, "entropy ", scores.entropy[r], " is outside [0, ", max_entropy, "]");
    }
  }
  return absl::OkStatus();
}

}  // namespace taopd
