#include "common/engine/scheduling/sequence.h"

#include <algorithm>
#include <utility>

namespace taopd {

Sequence::Sequence(RequestHandle handle, InferenceRequest request_in, InferenceDone done,
                   const std::vector<int32_t>& eos_token_ids)
    : handle(handle), request(std::move(request_in)), done(std::move(done)) {
  if (request.score) next_scored_row = request.score->start - 1;
  if (!request.sampling) return;
  stop_ids_ = request.sampling->stop_token_ids;
  if (!request.sampling->ignore_eos)
    stop_ids_.insert(stop_ids_.end(), eos_token_ids.begin(), eos_token_ids.end());
  std::sort(stop_ids_.begin(), stop_ids_.end());
}

void Sequence::Append(const SampledToken& token) {
  generated.ids.push_back(token.id);
  generated.log_probs.push_back(token.log_prob);
  if (request.on_token) request.on_token(token.id, token.log_prob);
  if (std::binary_search(stop_ids_.begin(), stop_ids_.end(), token.id)) {
    generated.finish = FinishReason::kStop;
    finished = true;
  } else if (static_cast<int64_t>(generated.ids.size()) >= request.sampling->max_new_tokens) {
    generated.finish = FinishReason::kLength;
    finished = true;
  }
}

}  // namespace taopd
