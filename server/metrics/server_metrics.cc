#include "server/metrics/server_metrics.h"

#include <prometheus/text_serializer.h>

#include <utility>
#include <vector>

#include "server/options/version.h"

namespace taopd {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const prometheus::Histogram::BucketBoundaries kLatencySeconds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};

MetricFamily Family(const std::string& name, const std::string& help, MetricType type, double value,
                    std::vector<ClientMetric::Label> labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return {name, help, type, {std::move(metric)}};
}

void AppendEngineFamilies(ServingState& state, const ServedModel& model,
                          std::vector<MetricFamily>* families) {
  const EngineStats stats = model.engine->stats();
  const auto gauge = [&](const char* name, const char* help, double value) {
    families->push_back(Family(name, help, MetricType::Gauge, value));
  };
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    families->push_back(Family(name, help, MetricType::Counter, static_cast<double>(value)));
  };
  gauge("taopd_teacher_queued_tokens", "Tokens that wait for the engine.",
        static_cast<double>(stats.queued_tokens));
  gauge("taopd_teacher_max_queued_tokens", "Tokens that may wait.",
        static_cast<double>(model.limits.max_queued_tokens));
  gauge("taopd_teacher_engine_heartbeat_age_seconds",
        "Time since the engine's last step while it has work.", state.HeartbeatAgeSeconds());
  counter("taopd_teacher_scored_rows_total", "Positions scored.", stats.scored_rows);
  counter("taopd_teacher_finished_sequences_total", "Sequences the engine finished.",
          stats.finished_requests);
  counter("taopd_teacher_failed_sequences_total", "Sequences that failed or were cancelled.",
          stats.failed_requests);

  const std::vector<ClientMetric::Label> labels = {{"model_name", model.name}};
  const auto named = [&](const char* name, const char* help, MetricType type, double value) {
    families->push_back(Family(name, help, type, value, labels));
  };
  named("vllm:num_requests_running", "Sequences in the running batch.", MetricType::Gauge,
        static_cast<double>(stats.num_running));
  named("vllm:num_requests_waiting", "Sequences that wait.", MetricType::Gauge,
        static_cast<double>(stats.num_waiting));
  named("vllm:prompt_tokens_total", "Prompt tokens computed.", MetricType::Counter,
        static_cast<double>(stats.prompt_tokens));
  named("vllm:generation_tokens_total", "Tokens generated.", MetricType::Counter,
        static_cast<double>(stats.generated_tokens));
  named("vllm:kv_cache_usage_perc", "Share of the KV cache's blocks in use; 1 is all of them.",
        MetricType::Gauge,
        stats.num_kv_blocks == 0 ? 0.0
                                 : static_cast<double>(stats.kv_blocks_in_use) /
                                       static_cast<double>(stats.num_kv_blocks));
  named("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
        MetricType::Counter, static_cast<double>(stats.prefix_query_tokens));
  named("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
        MetricType::Counter, static_cast<double>(stats.prefix_hit_tokens));
  named("vllm:num_preemptions_total", "Sequences that lost their place in the KV cache.",
        MetricType::Counter, static_cast<double>(stats.num_preempted));
  families->push_back(Family("taopd_teacher_info", "Always 1; the labels say what is served.",
                             MetricType::Gauge, 1.0,
                             {{"model_name", model.name},
                              {"revision", model.revision},
                              {"dtype", model.dtype},
                              {"version", kTeacherVersion}}));
}

}  // namespace

ServerMetrics::ServerMetrics()
    : requests_(prometheus::BuildCounter()
                    .Name("taopd_teacher_requests_total")
                    .Help("Requests answered, by method and code.")
                    .Register(registry_)),
      latencies_(prometheus::BuildHistogram()
                     .Name("taopd_teacher_request_duration_seconds")
                     .Help("Time from the request's arrival to its answer.")
                     .Register(registry_)) {}

void ServerMetrics::RecordRequest(const std::string& method, const std::string& code,
                                  absl::Duration latency) {
  requests_.Add({{"method", method}, {"code", code}}).Increment();
  latencies_.Add({{"method", method}}, kLatencySeconds).Observe(absl::ToDoubleSeconds(latency));
}

std::string ServerMetrics::Text(ServingState& state) {
  std::vector<MetricFamily> families = registry_.Collect();
  families.push_back(Family("taopd_teacher_ready",
                            "1 when requests are accepted and the engine moves.", MetricType::Gauge,
                            state.Health().ok() ? 1.0 : 0.0));
  families.push_back(Family("taopd_teacher_message_memory_bytes",
                            "Memory reserved for request bodies and answers.", MetricType::Gauge,
                            static_cast<double>(state.message_budget().num_used())));
  if (const auto model = state.model()) AppendEngineFamilies(state, *model, &families);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace taopd
