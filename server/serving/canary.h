// A fixed probe of the served model. It is scored at the start and from time to time; a model whose
// weights have gone wrong in memory answers it with other numbers, with numbers that are not
// finite, or, if the weights are gone, with a uniform distribution.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "common/engine/engine.h"

namespace taopd {

class Canary {
 public:
  // `bitwise`: the engine promises the same bytes for the same request (a CPU). Otherwise the
  // log-probs may differ by kTolerance.
  Canary(const EngineLimits& limits, bool bitwise) : limits_(limits), bitwise_(bitwise) {}

  // On a GPU the order of sums depends on the rest of the batch. With bfloat16 weights a log-prob
  // moves by a few hundredths; damaged weights move it by nats.
  static constexpr float kTolerance = 0.25f;

  // False if the model's sequences are too short to score anything.
  bool CanProbe() const { return limits_.max_model_len >= 2; }
  // The probe: the same tokens every time, never from the prefix cache. REQUIRES: CanProbe().
  InferenceRequest NextRequest();
  // OK if the answer is right, INTERNAL saying what is wrong with it; none if it says nothing about
  // the model: the queue was full, or the engine is draining. The first right answer is the one
  // that later ones are compared with.
  std::optional<absl::Status> Judge(const absl::StatusOr<InferenceResult>& answer);

 private:
  absl::Status Compare(const ScoreRows& rows) const;
  // INTERNAL naming the first number with other bits than at the start.
  absl::Status CompareBits(const ScoreRows& rows) const;

  const EngineLimits limits_;
  const bool bitwise_;
  uint64_t num_requests_ = 0;
  std::optional<ScoreRows> reference_;
};

}  // namespace taopd
