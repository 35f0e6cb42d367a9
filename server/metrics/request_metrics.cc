#include "server/metrics/request_metrics.h"

#include "common/base/status.h"

namespace taopd {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                    0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                    20,    40,    80,   160,  640,  2560};
const Buckets kTokenSeconds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                               0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const Buckets kRequestSeconds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const Buckets kTokens = {1,   2,    5,    10,   20,    50,    100,   200,
                         500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

const Buckets kChoices = {1, 2, 5, 10, 20};

// Returns the label of taopd_teacher_refused_requests_total, or null if the answer is not a
// refusal.
const char* RefusalReason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return "invalid";
    case absl::StatusCode::kFailedPrecondition:
      return "only_scores";
    case absl::StatusCode::kResourceExhausted:
      return "queue_full";
    case absl::StatusCode::kUnavailable:
      return "unavailable";
    case absl::StatusCode::kDeadlineExceeded:
      return "deadline";
    default:
      return nullptr;
  }
}

}  // namespace

prometheus::Histogram& RequestMetrics::MakeHistogram(prometheus::Registry* registry,
                                                     const char* name, const char* help,
                                                     const Buckets& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry).Add(labels_,
                                                                                    buckets);
}

RequestMetrics::RequestMetrics(const std::string& model_name, prometheus::Registry* registry)
    : labels_({{"model_name", model_name}}),
      successes_(prometheus::BuildCounter()
                     .Name("vllm:request_success_total")
                     .Help("Requests that generated, by the reason for which they ended.")
                     .Register(*registry)),
      refusals_(prometheus::BuildCounter()
                    .Name("taopd_teacher_refused_requests_total")
                    .Help("Sequences that the engine refused or gave up, by reason.")
                    .Register(*registry)),
      first_token_s_(MakeHistogram(registry, "vllm:time_to_first_token_seconds",
                                   "From the request's arrival to its first token.",
                                   kFirstTokenSeconds)),
      inter_token_s_(MakeHistogram(registry, "vllm:inter_token_latency_seconds",
                                   "Between two tokens of a request.", kTokenSeconds)),
      time_per_token_s_(MakeHistogram(registry, "vllm:request_time_per_output_token_seconds",
                                      "A request's mean time per token after the first.",
                                      kTokenSeconds)),
      total_s_(MakeHistogram(registry, "vllm:e2e_request_latency_seconds",
                             "From the request's arrival to its last token.", kRequestSeconds)),
      queue_s_(MakeHistogram(registry, "vllm:request_queue_time_seconds", "Time spent waiting.",
                             kRequestSeconds)),
      running_s_(MakeHistogram(registry, "vllm:request_inference_time_seconds",
                               "From the request's first step to its last token.",
                               kRequestSeconds)),
      prefill_s_(MakeHistogram(registry, "vllm:request_prefill_time_seconds",
                               "From the request's first step to its first token.",
                               kRequestSeconds)),
      decode_s_(MakeHistogram(registry, "vllm:request_decode_time_seconds",
                              "From the request's first token to its last.", kRequestSeconds)),
      prompt_tokens_(MakeHistogram(registry, "vllm:request_prompt_tokens",
                                   "Prompt tokens of a request.", kTokens)),
      generated_tokens_(MakeHistogram(registry, "vllm:request_generation_tokens",
                                      "Generated tokens of a request.", kTokens)),
      max_tokens_(MakeHistogram(registry, "vllm:request_params_max_tokens",
                                "Tokens that a request allows to generate.", kTokens)),
      num_choices_(MakeHistogram(registry, "vllm:request_params_n",
                                 "Sequences that a request asks for from one prompt.", kChoices)),
      score_s_(MakeHistogram(registry, "taopd_teacher_score_seconds",
                             "From a sequence's arrival in the engine to its scores.",
                             kFirstTokenSeconds)) {
  // These series exist from the start, so that rates can be computed.
  for (const char* reason : {"stop", "length", "abort", "error"})
    successes_.Add({{"model_name", model_name}, {"finished_reason", reason}});
  for (const char* reason : {"invalid", "only_scores", "queue_full", "unavailable", "deadline"})
    refusals_.Add({{"model_name", model_name}, {"reason", reason}});
}

void RequestMetrics::RecordGeneration(const RequestTimes& times, absl::Time started_at,
                                      int64_t num_prompt_tokens, int64_t max_new_tokens,
                                      int64_t num_choices, const GeneratedTokens& generated) {
  // A time that the engine does not report is infinite.
  const auto observe = [](Histogram& histogram, absl::Duration duration) {
    if (absl::AbsDuration(duration) == absl::InfiniteDuration()) return;
    histogram.Observe(absl::ToDoubleSeconds(duration));
  };
  const size_t num_tokens = generated.ids.size();
  observe(total_s_, times.done_at - times.arrived_at);
  observe(queue_s_, started_at - times.arrived_at);
  observe(running_s_, times.last_token_at - started_at);
  observe(prefill_s_, times.first_token_at - started_at);
  observe(decode_s_, times.last_token_at - times.first_token_at);
  observe(first_token_s_, times.first_token_at - times.arrived_at);
  if (num_tokens > 1) {
    observe(time_per_token_s_,
            (times.last_token_at - times.first_token_at) / static_cast<int64_t>(num_tokens - 1));
  }
  prompt_tokens_.Observe(static_cast<double>(num_prompt_tokens));
  generated_tokens_.Observe(static_cast<double>(num_tokens));
  max_tokens_.Observe(static_cast<double>(max_new_tokens));
  if (num_choices > 0) num_choices_.Observe(static_cast<double>(num_choices));
  Labels labels = labels_;
  labels["finished_reason"] = generated.finish == FinishReason::kStop ? "stop" : "length";
  successes_.Add(labels).Increment();
}

void RequestMetrics::RecordFailure(absl::StatusCode code, bool generates) {
  Labels labels = labels_;
  if (const char* reason = RefusalReason(code)) {
    labels["reason"] = reason;
    refusals_.Add(labels).Increment();
  } else if (generates) {
    labels["finished_reason"] = code == absl::StatusCode::kCancelled ? "abort" : "error";
    successes_.Add(labels).Increment();
  }
}

}  // namespace taopd
