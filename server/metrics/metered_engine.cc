#include "server/metrics/metered_engine.h"

#include <atomic>
#include <utility>
#include <vector>

namespace taopd {
namespace {

class MeteredEngine final : public InferenceEngine {
 public:
  MeteredEngine(std::shared_ptr<InferenceEngine> engine, RequestMetrics* metrics,
                RequestTrace* trace, Clock* clock)
      : engine_(std::move(engine)), metrics_(metrics), trace_(trace), clock_(clock) {}

  std::vector<RequestHandle> SubmitBatch(RequestBatch requests) override {
    for (auto& [request, done] : requests) Measure(&request, &done);
    return engine_->SubmitBatch(std::move(requests));
  }
  void Cancel(RequestHandle handle) override { engine_->Cancel(handle); }
  void Drain(absl::Time deadline) override { engine_->Drain(deadline); }
  void ReleaseKvCache() override { engine_->ReleaseKvCache(); }
  EngineLimits limits() const override { return engine_->limits(); }
  EngineStats stats() const override { return engine_->stats(); }

 private:
  // Wraps the callbacks. After this, only the engine's thread writes the times.
  void Measure(InferenceRequest* request, InferenceDone* done) {
    auto times = std::make_shared<RequestTimes>();
    times->arrived_at = clock_->Now();
    const bool generates = request->sampling.has_value();
    if (generates) {
      request->on_token = [this, times, inner = std::move(request->on_token)](
                              const GeneratedTokens& so_far, bool is_last) {
        const absl::Time now = clock_->Now();
        if (times->first_token_at == absl::InfinitePast()) {
          times->first_token_at = now;
        } else {
          metrics_->RecordToken(now - times->last_token_at);
        }
        times->last_token_at = now;
        if (inner) inner(so_far, is_last);
      };
    }
    const int64_t num_prompt_tokens = static_cast<int64_t>(request->token_ids.size());
    const int64_t max_new_tokens = generates ? request->sampling->max_new_tokens : 0;
    *done = [this, times, generates, num_prompt_tokens, max_new_tokens,
             num_choices = request->num_choices,
             inner = std::move(*done)](absl::StatusOr<InferenceResult> result) {
      times->done_at = clock_->Now();
      if (trace_ != nullptr && result.ok()) Trace(*times, result->started_at);
      if (!result.ok()) {
        metrics_->RecordFailure(result.status().code(), generates);
      } else if (result->generated) {
        metrics_->RecordGeneration(*times, result->started_at, num_prompt_tokens, max_new_tokens,
                                   num_choices, *result->generated);
      } else {
        metrics_->RecordScore(*times);
      }
      inner(std::move(result));
    };
  }

  void Trace(const RequestTimes& times, absl::Time started_at) {
    const uint64_t sequence = ++num_traced_;
    trace_->Add(sequence, "waiting", times.arrived_at, started_at);
    if (times.first_token_at == absl::InfinitePast()) {
      trace_->Add(sequence, "score", started_at, times.done_at);
    } else {
      trace_->Add(sequence, "prompt", started_at, times.first_token_at);
      trace_->Add(sequence, "tokens", times.first_token_at, times.last_token_at);
    }
  }

  const std::shared_ptr<InferenceEngine> engine_;
  RequestMetrics* const metrics_;
  RequestTrace* const trace_;
  std::atomic<uint64_t> num_traced_{0};
  Clock* const clock_;
};

}  // namespace

std::unique_ptr<InferenceEngine> MakeMeteredEngine(std::shared_ptr<InferenceEngine> engine,
                                                   RequestMetrics* metrics, RequestTrace* trace,
                                                   Clock* clock) {
  return std::make_unique<MeteredEngine>(std::move(engine), metrics, trace, clock);
}

}  // namespace taopd
