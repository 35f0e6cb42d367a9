#include "tests/bench/teacher/metrics_cost.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "common/engine/engine.h"
#include "server/metrics/metered_engine.h"
#include "server/metrics/server_metrics.h"
#include "tests/support/stub_engine.h"

namespace taopd::bench {
namespace {

constexpr int kNumScores = 200'000;
constexpr int kNumGenerations = 2'000;
constexpr int kNumTokens = 100;
constexpr int kNumRounds = 5;

// Answers inside Submit.
class IdleEngine final : public testing::StubEngine {
 public:
  RequestHandle SubmitOne(InferenceRequest request, InferenceDone done) override {
    InferenceResult result;
    if (request.sampling) {
      GeneratedTokens tokens;
      for (int i = 0; i < kNumTokens; ++i) {
        tokens.ids.push_back(i);
        if (request.on_token) request.on_token(tokens, i + 1 == kNumTokens);
      }
      result.generated = std::move(tokens);
    }
    result.started_at = absl::UnixEpoch();
    done(std::move(result));
    return 1;
  }
};

// Returns the nanoseconds of `num` requests like `request`, the minimum of the rounds.
double Nanoseconds(InferenceEngine* engine, const InferenceRequest& request, int num) {
  double best = 1e18;
  for (int round = 0; round < kNumRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < num; ++i) engine->Submit(request, [](const auto&) {});
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

}  // namespace

MetricsCost MeasureMetricsCost() {
  IdleEngine bare;
  ServerMetrics metrics;
  const auto metered = MakeMeteredEngine(std::make_unique<IdleEngine>(), metrics.OfModel("idle"),
                                         nullptr, Clock::Real());
  InferenceRequest score, generation;
  score.token_ids = {1, 2};
  score.score.emplace();
  generation.token_ids = {1};
  generation.sampling.emplace();
  generation.on_token = [](const GeneratedTokens&, bool) {};
  const auto difference = [&](const InferenceRequest& request, int num) {
    return Nanoseconds(metered.get(), request, num) - Nanoseconds(&bare, request, num);
  };
  return {difference(score, kNumScores) / kNumScores,
          difference(generation, kNumGenerations) / (kNumGenerations * kNumTokens)};
}

}  // namespace taopd::bench
