// One request on its way through the engine: what was asked, where its keys and values lie, and
// what has been produced so far. The scheduler owns sequences; the engine's thread alone writes the
// produced parts while a sequence runs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/engine/engine.h"
#include "common/engine/runner/sampler.h"

namespace taopd {

struct Sequence {
  Sequence(RequestHandle handle, InferenceRequest request, InferenceDone done,
           const std::vector<int32_t>& eos_token_ids);

  int64_t num_prompt_tokens() const { return static_cast<int64_t>(request.token_ids.size()); }
  bool scores() const { return request.score.has_value(); }
  bool generates() const { return request.sampling.has_value(); }

  // Takes one sampled token: calls on_token, and ends the sequence at a stop id or at
  // max_new_tokens. REQUIRES: generates() && !finished.
  void Append(const SampledToken& token);

  // Whether there is nothing left to compute, or an error made the rest pointless.
  bool finished = false;
  // Not OK: this sequence alone failed (its logits are not finite).
  absl::Status status;

  const RequestHandle handle;
  InferenceRequest request;
  InferenceDone done;

  int64_t slot = -1;  // of the KV cache, while a generating sequence runs
  bool shares_prompt =
      false;               // the prompt equals that of the previous sequence in the same prefill
  bool cancelled = false;  // guarded by the engine's lock

  std::optional<ScoreRows> score;
  GeneratedTokens generated;

 private:
  std::vector<int32_t> stop_ids_;  // sorted
};

}  // namespace taopd
