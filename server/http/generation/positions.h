// The log-probs of one position in the order of vLLM's answers: the actual token first, then the
// top k in descending order without it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/engine/engine.h"
#include "server/generation/generation_request.h"

namespace taopd {

struct PositionEntry {
  int32_t id;
  float log_prob;
  int32_t rank;  // 0 = not asked for
};
// Empty: nothing to report, as for the first token of a prompt.
using Position = std::vector<PositionEntry>;

// One for each token of the prompt. `rows` begin at position `start`.
std::vector<Position> PromptPositions(const std::vector<int32_t>& token_ids, int64_t start,
                                      const std::optional<ScoreRows>& rows);
// One for each generated token, with `top_k` alternatives.
std::vector<Position> GeneratedPositions(const GeneratedTokens& generated, int32_t top_k);

// Returns INTERNAL if a log-prob is NaN or +inf, which JSON cannot express.
absl::Status CheckNumbers(const std::vector<Position>& positions);

}  // namespace taopd
