// One request on its way through the engine: what it asks for, where its keys and values are, and
// what has been produced so far. The scheduler owns all sequences. While a sequence runs, only the
// engine's thread writes it, except where a member says otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/engine/engine.h"
#include "common/engine/sampling/sampler.h"

namespace taopd {

struct Sequence {
  Sequence(RequestHandle handle, InferenceRequest request, InferenceDone done,
           const std::vector<int32_t>& eos_token_ids);

  int64_t num_prompt_tokens() const { return static_cast<int64_t>(request.token_ids.size()); }
  bool scores() const { return request.score.has_value(); }
  bool generates() const { return request.sampling.has_value(); }

  // Appends one sampled token: calls on_token and should_stop, and finishes the sequence at a stop
  // id, where should_stop says so, or at max_new_tokens. REQUIRES: generates() && !finished.
  void Append(const SampledToken& token);

  // Whether nothing is left to compute, be it because everything is done or because of an error.
  bool finished = false;
  // Not OK if this sequence failed, e.g. because its logits are not finite.
  absl::Status status;

  const RequestHandle handle;
  InferenceRequest request;
  InferenceDone done;

  // The slot of the KV cache, while a sequence that generates runs; else -1.
  int64_t slot = -1;
  // Whether the prompt equals that of the previous sequence of the same prefill.
  bool shares_prompt = false;
  // Guarded by the engine's lock.
  bool cancelled = false;

  std::optional<ScoreRows> score;
  GeneratedTokens generated;
  // What the Sampler needs to know of the tokens so far; null unless generates().
  std::unique_ptr<SamplingState> sampling_state;
};

}  // namespace taopd
