// The state of a sequence's sampling: the generated ids, the number of occurrences of each id, and
// the ids that end the sequence. The Sequence owns it and appends to it; a Sampler reads it. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/engine/engine_request.h"

namespace taopd {

class SamplingState {
 public:
  // `eos_token_ids` are the model's. Keeps no reference to the arguments.
  SamplingState(const SamplingParams& params, std::span<const int32_t> prompt_ids,
                std::span<const int32_t> eos_token_ids);

  // Records a sampled token.
  void Append(int32_t id);

  std::span<const int32_t> generated_ids() const { return generated_ids_; }
  // Returns whether the id ends the sequence: it is one of stop_token_ids or, unless ignore_eos is
  // set, one of the model's end-of-sequence ids.
  bool IsEnd(int32_t id) const;
  // Returns the ids that are forbidden among the first min_tokens; empty if min_tokens is 0.
  const std::vector<int32_t>& ids_after_min_tokens() const { return ids_after_min_tokens_; }

  struct Seen {
    bool in_prompt = false;
    int32_t num_generated = 0;
  };
  // Returns the ids whose logits penalties change; empty if there are no penalties. The prompt's
  // ids are included only if repetition_penalty is not 1.
  const std::unordered_map<int32_t, Seen>& seen() const { return seen_; }

 private:
  const bool has_penalties_;
  std::vector<int32_t> end_ids_;  // sorted
  std::vector<int32_t> ids_after_min_tokens_;
  std::vector<int32_t> generated_ids_;
  std::unordered_map<int32_t, Seen> seen_;
};

}  // namespace taopd
