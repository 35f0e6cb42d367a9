#include "common/engine/scheduling/sequence.h"

#include <utility>

namespace taopd {

Sequence::Sequence(RequestHandle handle, InferenceRequest request_in, InferenceDone done,
                   const std::vector<int32_t>& eos_token_ids)
    : handle(handle), request(std::move(request_in)), done(std::move(done)) {
  if (request.score) next_scored_row = request.score->start - 1;
  if (!request.sampling) return;
  sampling_state =
      std::make_unique<SamplingState>(*request.sampling, request.token_ids, eos_token_ids);
}

void Sequence::Append(const SampledToken& token) {
  const SamplingParams& params = *request.sampling;
  generated.ids.push_back(token.id);
  if (params.log_probs) generated.log_probs.push_back(token.log_prob);
  if (params.raw_log_probs) generated.raw_log_probs.push_back(token.raw_log_prob);
  if (params.ranks) generated.ranks.push_back(token.rank);
  sampling_state->Append(token.id);
  const bool told_to_stop = request.should_stop && request.should_stop(token.id);
  if (told_to_stop || sampling_state->IsEnd(token.id)) {
    generated.finish = FinishReason::kStop;
    finished = true;
  } else if (static_cast<int64_t>(generated.ids.size()) >= params.max_new_tokens) {
    generated.finish = FinishReason::kLength;
    finished = true;
  }
  if (!finished && params.mask != nullptr) params.mask->Prepare(generated.ids);
  if (request.on_token) request.on_token(generated, finished);
}

bool SharesPrompt(const Sequence& a, const Sequence& b) {
  const auto only_generates = [](const Sequence& sequence) {
    return sequence.generates() && !sequence.scores() && sequence.generated.ids.empty();
  };
  return only_generates(a) && only_generates(b) && a.request.client == b.request.client &&
         a.request.cache_salt == b.request.cache_salt && a.request.token_ids == b.request.token_ids;
}

}  // namespace taopd
