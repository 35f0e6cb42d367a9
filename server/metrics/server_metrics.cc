#include "server/metrics/server_metrics.h"

#include <absl/time/clock.h>
#include <prometheus/text_serializer.h>

#include <limits>
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

// Returns the refusals by reason: no room for anybody, or only none for this client.
MetricFamily RefusedFamily(const char* name, const char* help, uint64_t full,
                           uint64_t client_share) {
  MetricFamily family =
      Family(name, help, MetricType::Counter, static_cast<double>(full), {{"reason", "full"}});
  family.metric.push_back(Family(name, help, MetricType::Counter, static_cast<double>(client_share),
                                 {{"reason", "client_share"}})
                              .metric.front());
  return family;
}

MetricFamily IterationTokens(const StepSizes& sizes,
                             const std::vector<ClientMetric::Label>& labels) {
  MetricFamily family = Family("vllm:iteration_tokens_total", "Tokens per engine step.",
                               MetricType::Histogram, 0.0, labels);
  ClientMetric::Histogram& histogram = family.metric.front().histogram;
  for (size_t i = 0; i < sizes.counts.size(); ++i) {
    histogram.sample_count += sizes.counts[i];
    histogram.bucket.push_back(
        {histogram.sample_count, i < StepSizes::kBounds.size()
                                     ? static_cast<double>(StepSizes::kBounds[i])
                                     : std::numeric_limits<double>::infinity()});
  }
  histogram.sample_sum = static_cast<double>(sizes.num_tokens);
  return family;
}

// Appends nothing if no graphs were ever captured.
void AppendGraphFamilies(const GraphStats& graphs, std::vector<MetricFamily>* families) {
  if (graphs.num_captures == 0) return;
  families->push_back(Family("taopd_teacher_cuda_graphs", "Batch sizes with a CUDA graph.",
                             MetricType::Gauge, static_cast<double>(graphs.num_graphs)));
  const auto counter = [&](const char* name, const char* help, uint64_t value,
                           std::vector<ClientMetric::Label> labels = {}) {
    return Family(name, help, MetricType::Counter, static_cast<double>(value), std::move(labels));
  };
  families->push_back(counter("taopd_teacher_cuda_graph_captures_total",
                              "Times that all graphs were captured.", graphs.num_captures));
  const char* const steps = "taopd_teacher_cuda_graph_steps_total";
  const char* const help = "Engine steps that a CUDA graph replayed, and others (eager).";
  MetricFamily by_mode = counter(steps, help, graphs.replayed_steps, {{"mode", "replayed"}});
  by_mode.metric.push_back(
      counter(steps, help, graphs.eager_steps, {{"mode", "eager"}}).metric.front());
  families->push_back(std::move(by_mode));
  families->push_back(counter("taopd_teacher_cuda_graph_padding_rows_total",
                              "Rows that were computed to fill a graph's batch, and dropped.",
                              graphs.padding_rows));
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
  families->push_back(Family("taopd_teacher_layer_seconds_total",
                             "Time the engine spent in the model's layers.", MetricType::Counter,
                             stats.layer_seconds));
  families->push_back(Family("taopd_teacher_head_seconds_total",
                             "Time the engine spent in the head: scores and sampling.",
                             MetricType::Counter, stats.head_seconds));
  gauge("taopd_teacher_kernels_left_out",
        "Custom kernels that the check at the start has replaced by compositions.",
        static_cast<double>(stats.kernels_left_out));
  AppendGraphFamilies(stats.graphs, families);
  families->push_back(RefusedFamily("taopd_teacher_refused_for_queue_total",
                                    "Sequences refused because the queue was full.",
                                    stats.refused_queue_full, stats.refused_client_share));
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
  named("vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
        MetricType::Counter, static_cast<double>(stats.prefix_hit_tokens));
  families->push_back(IterationTokens(stats.step_sizes, labels));
  families->push_back(
      Family("vllm:cache_config_info", "Always 1; the labels describe the KV cache.",
             MetricType::Gauge, 1.0,
             {{"block_size", std::to_string(model.limits.kv_block_tokens)},
              {"enable_prefix_caching", model.limits.prefix_caching ? "True" : "False"},
              {"model_name", model.name},
              {"num_gpu_blocks", std::to_string(stats.num_kv_blocks)}}));
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
                                  absl::Duration latency, const std::string& client,
                                  const std::string& request_id) {
  requests_.Add({{"method", method}, {"code", code}}).Increment();
  latencies_.Add({{"method", method}}, kLatencySeconds).Observe(absl::ToDoubleSeconds(latency));
  if (access_log_ != nullptr)
    access_log_->Write({absl::Now(), client, request_id, method, code, latency});
}

RequestMetrics* ServerMetrics::OfModel(const std::string& model_name) {
  absl::MutexLock lock(&mutex_);
  if (of_model_ == nullptr) of_model_ = std::make_unique<RequestMetrics>(model_name, &registry_);
  return of_model_.get();
}

std::string ServerMetrics::Text(ServingState& state) {
  std::vector<MetricFamily> families = registry_.Collect();
  families.push_back(
      Family("taopd_teacher_ready",
             "1 when GET /ready says so: requests are accepted, the engine moves, the canary is "
             "right.",
             MetricType::Gauge, state.Ready().ok() ? 1.0 : 0.0));
  families.push_back(Family("taopd_teacher_canary_ok",
                            "0 when the canary's scores are not those of the start.",
                            MetricType::Gauge, state.canary().ok() ? 1.0 : 0.0));
  families.push_back(Family("taopd_teacher_canary_recovered_total",
                            "Wrong answers of the canary that the next one did not confirm.",
                            MetricType::Counter,
                            static_cast<double>(state.num_canary_recovered())));
  families.push_back(Family("taopd_teacher_forwarded_malformed_total",
                            "Addresses from trusted proxies that could not be read; the client was "
                            "then the proxy.",
                            MetricType::Counter,
                            static_cast<double>(state.trusted_proxies().num_malformed())));
  families.push_back(Family("taopd_teacher_message_memory_bytes",
                            "Memory reserved for request bodies and answers.", MetricType::Gauge,
                            static_cast<double>(state.message_budget().num_used())));
  const ByteBudget& memory = state.message_budget();
  families.push_back(RefusedFamily("taopd_teacher_refused_for_memory_total",
                                   "Request bodies and answers refused for want of memory.",
                                   memory.num_refused(ByteBudget::Refusal::kFull),
                                   memory.num_refused(ByteBudget::Refusal::kClientShare)));
  if (access_log_ != nullptr) {
    families.push_back(Family("taopd_teacher_access_log_lost_lines_total",
                              "Lines of the access log that found its queue full.",
                              MetricType::Counter, static_cast<double>(access_log_->num_lost())));
  }
  if (const auto model = state.model()) AppendEngineFamilies(state, *model, &families);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace taopd
