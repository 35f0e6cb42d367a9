#include "common/engine/sampling/sampling_state.h"

#include <algorithm>

namespace taopd {

SamplingState::SamplingState(const SamplingParams& params, std::span<const int32_t> prompt_ids,
                             std::span<const int32_t> eos_token_ids)
    : has_penalties_(params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f ||
                     params.presence_penalty != 0.0f),
      end_ids_(params.stop_token_ids) {
  if (!params.ignore_eos)
    end_ids_.insert(end_ids_.end(), eos_token_ids.begin(), eos_token_ids.end());
  std::sort(end_ids_.begin(), end_ids_.end());
  if (params.min_tokens > 0) {
    ids_after_min_tokens_ = params.stop_token_ids;
    ids_after_min_tokens_.insert(ids_after_min_tokens_.end(), eos_token_ids.begin(),
                                 eos_token_ids.end());
  }
  if (params.repetition_penalty == 1.0f) return;
  for (const int32_t id : prompt_ids) seen_[id].in_prompt = true;
}

void SamplingState::Append(int32_t id) {
  generated_ids_.push_back(id);
  if (has_penalties_) ++seen_[id].num_generated;
}

bool SamplingState::IsEnd(int32_t id) const {
  return std::binary_search(end_ids_.begin(), end_ids_.end(), id);
}

}  // namespace taopd
