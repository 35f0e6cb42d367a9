// What a sequence's sampling remembers from token to token: the generated ids, how often each id
// occurs, and which ids end the sequence. The Sequence owns it and appends; a Sampler reads it.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/engine/engine.h"

namespace taopd {

class SamplingState {
 public:
  // `eos_token_ids` are the model's. Keeps no reference to the arguments.
  SamplingState(const SamplingParams& params, std::span<const int32_t> prompt_ids,
                std::span<const int32_t> eos_token_ids);

  // Remembers the token that was sampled.
  void Append(int32_t id);

  std::span<const int32_t> generated_ids() const { return generated_ids_; }
  // Whether the id ends the sequence: one of stop_token_ids or, unless ignore_eos, of the model's.
  bool IsEnd(int32_t id) const;
  // What cannot be among the first min_tokens; empty if min_tokens is 0.
  const std::vector<int32_t>& ids_after_min_tokens() const { return ids_after_min_tokens_; }

  struct Seen {
    bool in_prompt = false;
    int32_t num_generated = 0;
  };
  // The ids that penalties change; empty if there are no penalties. The prompt's ids are in it only
  // if repetition_penalty is not 1.
  const std::unordered_map<int32_t, Seen>& seen() const { return seen_; }

 private:
  const bool has_penalties_;
  std::vector<int32_t> end_ids_;  // sorted
  std::vector<int32_t> ids_after_min_tokens_;
  std::vector<int32_t> generated_ids_;
  std::unordered_map<int32_t, Seen> seen_;
};

}  // namespace taopd
