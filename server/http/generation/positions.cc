#include "server/http/generation/positions.h"

#include <cmath>

namespace taopd {
namespace {

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

}  // namespace taopd
