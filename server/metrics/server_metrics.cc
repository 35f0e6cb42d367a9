#include "server/metrics/server_metrics.h"

#include <absl/time/clock.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <utility>
#include <vector>

#include "common/engine/engine_stats.h"
#include "server/options/version.h"

namespace taopd {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const prometheus::Histogram::BucketBoundaries kLatencySeconds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};

using Labels = std::vector<ClientMetric::Label>;

// The families that are made when the text is.
class Families {
 public:
  explicit Families(std::vector<MetricFamily> families) : families_(std::move(families)) {}

  // Adds a series to the family of that name, which it begins if the last one is another.
  template <typename Number>
  void Add(MetricType type, const char* name, const char* help, Number value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    if (type == MetricType::Counter) {
      metric.counter.value = static_cast<double>(value);
    } else {
      metric.gauge.value = static_cast<double>(value);
    }
    if (families_.empty() || families_.back().name != name)
      families_.push_back({name, help, type, {}});
    families_.back().metric.push_back(std::move(metric));
  }
  void Gauge(const char* name, const char* help, auto value, Labels labels = {}) {
    Add(MetricType::Gauge, name, help, value, std::move(labels));
  }
  void Counter(const char* name, const char* help, auto value, Labels labels = {}) {
    Add(MetricType::Counter, name, help, value, std::move(labels));
  }
  // Adds refusals by reason: the limit was reached, or the client's share of it.
  void Refused(const char* name, const char* help, uint64_t full, uint64_t client_share) {
    Counter(name, help, full, {{"reason", "full"}});
    Counter(name, help, client_share, {{"reason", "client_share"}});
  }
  std::vector<MetricFamily>& all() { return families_; }

 private:
  std::vector<MetricFamily> families_;
};

void AddIterationTokens(const StepSizes& sizes, const Labels& labels, Families* families) {
  families->Add(MetricType::Histogram, "vllm:iteration_tokens_total", "Tokens per engine step.", 0,
                labels);
  ClientMetric::Histogram& histogram = families->all().back().metric.front().histogram;
  for (size_t i = 0; i < sizes.counts.size(); ++i) {
    histogram.sample_count += sizes.counts[i];
    histogram.bucket.push_back(
        {histogram.sample_count, i < StepSizes::kBounds.size()
                                     ? static_cast<double>(StepSizes::kBounds[i])
                                     : std::numeric_limits<double>::infinity()});
  }
  histogram.sample_sum = static_cast<double>(sizes.num_tokens);
}

// Adds nothing if no graphs were ever captured.
void AddGraphFamilies(const GraphStats& graphs, Families* families) {
  if (graphs.num_captures == 0) return;
  families->Gauge("taopd_teacher_cuda_graphs", "Batch sizes with a CUDA graph.", graphs.num_graphs);
  families->Counter("taopd_teacher_cuda_graph_captures_total",
                    "Number of times that all graphs were captured.", graphs.num_captures);
  const char* const steps = "taopd_teacher_cuda_graph_steps_total";
  const char* const help = "Engine steps, by whether a CUDA graph replayed them.";
  families->Counter(steps, help, graphs.replayed_steps, {{"mode", "replayed"}});
  families->Counter(steps, help, graphs.eager_steps, {{"mode", "eager"}});
  families->Counter("taopd_teacher_cuda_graph_padding_rows_total",
                    "Rows that were computed only to fill a graph's batch.", graphs.padding_rows);
}

// Adds the engine's numbers under vLLM's names.
void AddVllmFamilies(const ServedModel& model, const EngineStats& stats, Families* families) {
  const Labels labels = {{"model_name", model.name}};
  families->Gauge("vllm:num_requests_running", "Sequences in the running batch.", stats.num_running,
                  labels);
  families->Gauge("vllm:num_requests_waiting", "Sequences that wait.", stats.num_waiting, labels);
  families->Counter("vllm:prompt_tokens_total", "Prompt tokens computed.", stats.prompt_tokens,
                    labels);
  families->Counter("vllm:generation_tokens_total", "Tokens generated.", stats.generated_tokens,
                    labels);
  const double num_blocks = static_cast<double>(stats.num_kv_blocks);
  families->Gauge(
      "vllm:kv_cache_usage_perc", "Share of the KV cache's blocks in use; 1 is all of them.",
      num_blocks == 0 ? 0.0 : static_cast<double>(stats.kv_blocks_in_use) / num_blocks, labels);
  families->Counter("vllm:prefix_cache_queries_total",
                    "Prompt tokens looked up in the prefix cache.", stats.prefix_query_tokens,
                    labels);
  families->Counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
                    stats.prefix_hit_tokens, labels);
  families->Counter("vllm:num_preemptions_total",
                    "Sequences that lost their place in the KV cache.", stats.num_preempted,
                    labels);
  families->Counter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
                    stats.prefix_hit_tokens, labels);
  AddIterationTokens(stats.step_sizes, labels, families);
  families->Gauge("vllm:cache_config_info", "Always 1; the labels describe the KV cache.", 1,
                  {{"block_size", std::to_string(model.limits.kv_block_tokens)},
                   {"enable_prefix_caching", model.limits.prefix_caching ? "True" : "False"},
                   {"model_name", model.name},
                   {"num_gpu_blocks", std::to_string(stats.num_kv_blocks)}});
}

void AddEngineFamilies(ServingState& state, const ServedModel& model, Families* families) {
  const EngineStats stats = model.engine->stats();
  families->Gauge("taopd_teacher_queued_tokens", "Tokens that wait for the engine.",
                  stats.queued_tokens);
  families->Gauge("taopd_teacher_max_queued_tokens", "Tokens that may wait.",
                  model.limits.max_queued_tokens);
  families->Gauge("taopd_teacher_engine_heartbeat_age_seconds",
                  "Time since the engine's last step while it has work.",
                  state.HeartbeatAgeSeconds());
  families->Counter("taopd_teacher_scored_rows_total", "Positions scored.", stats.scored_rows);
  families->Counter("taopd_teacher_finished_sequences_total", "Sequences the engine finished.",
                    stats.finished_requests);
  families->Counter("taopd_teacher_layer_seconds_total",
                    "Time the engine spent in the model's layers.", stats.layer_seconds);
  families->Counter("taopd_teacher_head_seconds_total",
                    "Time the engine spent in the head: scores and sampling.", stats.head_seconds);
  families->Gauge("taopd_teacher_kernels_left_out",
                  "Custom kernels that the check at the start has replaced by compositions.",
                  stats.kernels_left_out);
  AddGraphFamilies(stats.graphs, families);
  families->Refused("taopd_teacher_refused_for_queue_total",
                    "Sequences refused because the queue was full.", stats.refused_queue_full,
                    stats.refused_client_share);
  families->Counter("taopd_teacher_failed_sequences_total",
                    "Sequences that failed or were cancelled.", stats.failed_requests);
  AddVllmFamilies(model, stats, families);
  families->Gauge("taopd_teacher_info", "Always 1; the labels say what is served.", 1,
                  {{"model_name", model.name},
                   {"revision", model.revision},
                   {"dtype", model.dtype},
                   {"version", kTeacherVersion}});
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
  if (request_metrics_ == nullptr)
    request_metrics_ = std::make_unique<RequestMetrics>(model_name, &registry_);
  return request_metrics_.get();
}

std::string ServerMetrics::Text(ServingState& state) {
  Families families(registry_.Collect());
  families.Gauge(
      "taopd_teacher_ready",
      "1 if GET /ready returns 200: requests are accepted, the engine makes progress, and "
      "the canary is right.",
      state.Ready().ok() ? 1 : 0);
  families.Gauge("taopd_teacher_canary_ok",
                 "0 while the canary's scores differ from those at the start.",
                 state.canary().ok() ? 1 : 0);
  families.Counter("taopd_teacher_canary_recovered_total",
                   "Wrong answers of the canary that the next one did not confirm.",
                   state.num_canary_recovered());
  families.Counter("taopd_teacher_forwarded_malformed_total",
                   "Addresses from trusted proxies that could not be read; the client was then the "
                   "proxy.",
                   state.trusted_proxies().num_malformed());
  const ByteBudget& memory = state.message_budget();
  families.Gauge("taopd_teacher_message_memory_bytes",
                 "Memory reserved for request bodies and answers.", memory.num_used());
  families.Refused("taopd_teacher_refused_for_memory_total",
                   "Request bodies and answers refused because memory was short.",
                   memory.num_refused(ByteBudget::Refusal::kFull),
                   memory.num_refused(ByteBudget::Refusal::kClientShare));
  if (access_log_ != nullptr) {
    families.Counter("taopd_teacher_access_log_lost_lines_total",
                     "Lines of the access log that were lost because its queue was full.",
                     access_log_->num_lost());
  }
  if (const auto model = state.model()) AddEngineFamilies(state, *model, &families);
  return prometheus::TextSerializer().Serialize(families.all());
}

}  // namespace taopd
