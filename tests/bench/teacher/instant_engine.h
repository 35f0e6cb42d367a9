// An engine that answers inside Submit with arrays of the right shape, so that the time of a call
// is the protocol's.
#pragma once

#include <utility>
#include <vector>

#include "tests/support/stub_engine.h"

namespace taopd::bench {

class InstantEngine final : public testing::StubEngine {
 public:
  explicit InstantEngine(const EngineLimits& limits) : limits_(limits) {}

  RequestHandle SubmitOne(InferenceRequest request, InferenceDone done) override {
    InferenceResult result;
    if (request.score) {
      ScoreRows& rows = result.score.emplace();
      rows.num_rows = static_cast<int64_t>(request.token_ids.size()) - request.score->start;
      rows.top_k = request.score->top_k;
      const auto num_rows = static_cast<size_t>(rows.num_rows);
      const auto k = static_cast<size_t>(rows.top_k);
      for (size_t i = 0; i < num_rows * k; ++i) {
        rows.ids.push_back(static_cast<int32_t>(i * 7919 % 8191));
        rows.log_probs.push_back(-0.125f * static_cast<float>(1 + i % k) -
                                 1e-4f * static_cast<float>(i));
      }
      rows.log_tail.assign(num_rows, -3.0f);
      rows.sampled_log_probs.assign(num_rows, -9.0f);
      if (request.score->rank) rows.sampled_ranks.assign(num_rows, 100);
    }
    if (request.sampling) {
      GeneratedTokens& tokens = result.generated.emplace();
      tokens.ids = {1};
      tokens.log_probs = tokens.raw_log_probs = {-1.0f};
      tokens.ranks = {1};
      if (request.should_stop) request.should_stop(1);
      if (request.on_token) request.on_token(tokens, true);
    }
    done(std::move(result));
    return 1;
  }
  EngineLimits limits() const override { return limits_; }

 private:
  const EngineLimits limits_;
};

}  // namespace taopd::bench
