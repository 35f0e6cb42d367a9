#include "trainer/step/loss/micro_batches.h"

namespace taopd {

int64_t NumInputTokens(const Rollout& rollout) {
  return static_cast<int64_t>(rollout.prompt_ids.size() + rollout.response_ids.size()) - 1;
}

std::vector<int64_t> MicroBatchEnds(const std::vector<int64_t>& num_tokens, int64_t budget_tokens) {
  std::vector<int64_t> ends;
  int64_t filled = 0;
  for (size_t i = 0; i < num_tokens.size(); ++i) {
    if (i > 0 && filled + num_tokens[i] > budget_tokens) {
      ends.push_back(static_cast<int64_t>(i));
      filled = 0;
    }
    filled += num_tokens[i];
  }
  if (!num_tokens.empty()) ends.push_back(static_cast<int64_t>(num_tokens.size()));
  return ends;
}

}  // namespace taopd
