// A fixed probe of the served model. It is scored at the start and from time to time. A model whose
// weights are damaged in memory answers with other numbers, with numbers that are not finite or, if
// the weights are lost, with a uniform distribution.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/engine/engine.h"

namespace taopd {

class Canary {
 public:
  // `bitwise` is true if the engine guarantees the same bytes for the same request (on a CPU).
  // Otherwise the log-probs may differ by ToleranceOf(dtype). `dtype` is that of the weights.
  Canary(const EngineLimits& limits, bool bitwise, std::string_view dtype)
      : limits_(limits), bitwise_(bitwise), tolerance_(ToleranceOf(dtype)) {}

  // Returns how far a log-prob may move, in nats. On a GPU the order of sums depends on the rest of
  // the batch, which changes a log-prob by some roundings of the dtype. The tolerance is 64
  // roundings, but at least 1e-3 nats: 0.25 for bfloat16 and 0.031 for float16. Damaged weights
  // change it by nats.
  static float ToleranceOf(std::string_view dtype);

  // Returns false if the model's sequences are too short to score anything.
  bool CanProbe() const { return limits_.max_model_len >= 2; }
  // Returns the probe, which always has the same tokens and never uses the prefix cache. REQUIRES:
  // CanProbe().
  InferenceRequest NextRequest();
  // Returns OK if the answer is right, and INTERNAL with the fault if it is wrong. Returns nullopt
  // if it shows nothing about the model, because the queue was full or the engine is draining.
  // Later answers are compared with the first right one.
  std::optional<absl::Status> Judge(const absl::StatusOr<InferenceResult>& answer);

 private:
  absl::Status Compare(const ScoreRows& rows) const;
  // Returns INTERNAL naming the first number whose bits differ from those at the start.
  absl::Status CompareBits(const ScoreRows& rows) const;

  const EngineLimits limits_;
  const bool bitwise_;
  const float tolerance_;
  uint64_t num_requests_ = 0;
  std::optional<ScoreRows> reference_;
};

}  // namespace taopd
