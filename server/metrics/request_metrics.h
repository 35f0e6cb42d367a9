// Metrics of the requests' times in the engine and of their sizes, under vLLM's names and with
// vLLM's buckets. Only requests that generate count there; scores have a histogram of their own.
//
// Thread-safe.
#pragma once

#include <absl/time/time.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>

#include "common/engine/engine_request.h"

namespace taopd {

// The times at which the parts of one request arrived; InfinitePast for missing parts.
struct RequestTimes {
  absl::Time arrived_at = absl::InfinitePast();
  absl::Time first_token_at = absl::InfinitePast();
  absl::Time last_token_at = absl::InfinitePast();
  absl::Time done_at = absl::InfinitePast();
};

class RequestMetrics {
 public:
  // Creates the series in `registry`, which must outlive the object.
  RequestMetrics(const std::string& model_name, prometheus::Registry* registry);

  // Records the time between two tokens of one request.
  void RecordToken(absl::Duration since_last) {
    inter_token_s_.Observe(absl::ToDoubleSeconds(since_last));
  }
  // Records a request that has generated and got its result. `num_choices` is explained at
  // InferenceRequest.
  void RecordGeneration(const RequestTimes& times, absl::Time started_at, int64_t num_prompt_tokens,
                        int64_t max_new_tokens, int64_t num_choices,
                        const GeneratedTokens& generated);
  // Records a request that only scored.
  void RecordScore(const RequestTimes& times) {
    score_s_.Observe(absl::ToDoubleSeconds(times.done_at - times.arrived_at));
  }
  // Records a request that was refused, cancelled, too late, or failed.
  void RecordFailure(absl::StatusCode code, bool generates);

 private:
  using Histogram = prometheus::Histogram;
  using Labels = prometheus::Labels;

  Histogram& MakeHistogram(prometheus::Registry* registry, const char* name, const char* help,
                           const Histogram::BucketBoundaries& buckets);

  const Labels labels_;
  prometheus::Family<prometheus::Counter>& successes_;
  prometheus::Family<prometheus::Counter>& refusals_;
  Histogram& first_token_s_;
  Histogram& inter_token_s_;
  Histogram& time_per_token_s_;
  Histogram& total_s_;
  Histogram& queue_s_;
  Histogram& running_s_;
  Histogram& prefill_s_;
  Histogram& decode_s_;
  Histogram& prompt_tokens_;
  Histogram& generated_tokens_;
  Histogram& max_tokens_;
  Histogram& num_choices_;
  Histogram& score_s_;
};

}  // namespace taopd
