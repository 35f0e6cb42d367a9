#include "server/app/canary.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>

namespace taopd {
namespace {

constexpr int64_t kNumTokens = 64;
constexpr int32_t kTopK = 16;
// A distribution whose largest log-prob is this close to that of the uniform one counts as uniform.
// In nats. A model with random weights is far above it in some row.
constexpr double kUniformTolerance = 1e-4;

// Returns the index of the first number with other bits, or nullopt.
std::optional<size_t> FirstOtherBits(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::min(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return i;
  }
  return std::nullopt;
}

// Returns the first row that cannot be right: a log-prob is NaN or above 0, or the entropy is not
// finite. A tail of -inf is right if no probability is left outside the ids.
std::optional<int64_t> FirstBadRow(const ScoreRows& rows) {
  const auto is_bad = [](float value) { return std::isnan(value) || value > 1e-3f; };
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    bool bad = is_bad(rows.sampled_log_probs[r]) || is_bad(rows.log_tail[r]) ||
               !std::isfinite(rows.entropy[r]);
    for (int32_t j = 0; j < rows.top_k; ++j)
      bad = bad || is_bad(rows.log_probs[r * rows.top_k + j]);
    if (bad) return r;
  }
  return std::nullopt;
}

bool IsUniform(const ScoreRows& rows, int64_t vocab_size) {
  if (vocab_size < 2) return false;
  const double log_vocab = std::log(static_cast<double>(vocab_size));
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const double best = rows.top_k > 0 ? rows.log_probs[r * rows.top_k] : rows.sampled_log_probs[r];
    if (std::abs(best + log_vocab) > kUniformTolerance) return false;
  }
  return true;
}

}  // namespace

float Canary::ToleranceOf(std::string_view dtype) {
  constexpr float kRoundings = 64, kSmallest = 1e-3f;
  // Half the distance between 1 and the next number.
  const float rounding = dtype == "bfloat16" ? 0x1p-8f : dtype == "float16" ? 0x1p-11f : 0x1p-24f;
  return std::max(kRoundings * rounding, kSmallest);
}

InferenceRequest Canary::NextRequest() {
  InferenceRequest request;
  request.request_id = "canary";
  request.client = "canary";
  // A unique salt, because cached keys and values would hide damage to the weights.
  request.cache_salt = "canary " + std::to_string(num_requests_++);
  const int64_t num_tokens = std::min(kNumTokens, limits_.max_model_len);
  uint64_t state = 0;
  for (int64_t i = 0; i < num_tokens; ++i) {
    state += 0x9e3779b97f4a7c15;  // the golden ratio, for ids from the whole vocabulary
    request.token_ids.push_back(
        static_cast<int32_t>((state >> 32) % static_cast<uint64_t>(limits_.vocab_size)));
  }
  ScoreParams score;
  score.top_k = std::min(kTopK, limits_.max_logprobs);
  score.entropy = true;
  request.score = score;
  return request;
}

std::optional<absl::Status> Canary::Judge(const absl::StatusOr<InferenceResult>& answer) {
  if (!answer.ok()) {
    if (!absl::IsInternal(answer.status())) return std::nullopt;
    return Internal("the canary failed: ", answer.status().message());
  }
  const ScoreRows& rows = *answer->score;
  if (const auto row = FirstBadRow(rows)) {
    return Internal("the canary's scores at position ", *row + 1,
                    " cannot be right: a log-prob is above 0, or a number is not finite");
  }
  if (IsUniform(rows, limits_.vocab_size)) {
    return Internal("the canary's distributions are uniform over ", limits_.vocab_size,
                    " ids: the weights are lost");
  }
  if (!reference_) {
    reference_ = rows;
    return absl::OkStatus();
  }
  return Compare(rows);
}

absl::Status Canary::Compare(const ScoreRows& rows) const {
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const float now = rows.sampled_log_probs[r], before = reference_->sampled_log_probs[r];
    if (std::abs(now - before) > tolerance_) {
      return Internal("the canary's log-prob at position ", r + 1, " was ", before,
                      " at the start and is ", now, " now");
    }
  }
  return bitwise_ ? CompareBits(rows) : absl::OkStatus();
}

absl::Status Canary::CompareBits(const ScoreRows& rows) const {
  const size_t k = static_cast<size_t>(std::max(rows.top_k, 1));
  const struct {
    const char* name;
    std::span<const float> now, before;
    size_t per_row;
  } arrays[] = {
      {"log-prob", rows.sampled_log_probs, reference_->sampled_log_probs, 1},
      {"top log-prob", rows.log_probs, reference_->log_probs, k},
      {"log tail", rows.log_tail, reference_->log_tail, 1},
      {"entropy", rows.entropy, reference_->entropy, 1},
  };
  for (const auto& [name, now, before, per_row] : arrays) {
    const std::optional<size_t> i = FirstOtherBits(now, before);
    if (!i) continue;
    if (*i >= now.size() || *i >= before.size()) {
      return Internal("the canary's ", name, " has ", now.size(), " values and had ", before.size(),
                      " at the start");
    }
    return Internal("the bits of the canary's scores have changed: the ", name, " at position ",
                    *i / per_row + 1, " was ", absl::StrFormat("%.9g", before[*i]), " and is ",
                    absl::StrFormat("%.9g", now[*i]), " now");
  }
  if (rows.ids != reference_->ids) {
    const auto [now, before] =
        std::mismatch(rows.ids.begin(), rows.ids.end(), reference_->ids.begin());
    return Internal("the bits of the canary's scores have changed: a top id at position ",
                    static_cast<size_t>(now - rows.ids.begin()) / k + 1, " was ", *before,
                    " and is ", *now, " now");
  }
  return absl::OkStatus();
}

}  // namespace taopd
