#include "server/metrics/server_metrics.h"

#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

class ServerMetricsTest : public ::testing::Test {
 protected:
  void ExpectTextHas(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) EXPECT_THAT(metrics_.Text(state_), HasSubstr(line));
  }

  ServingState state_{Clock::Real(), absl::Seconds(1)};
  ServerMetrics metrics_;
  const FakeModel fake_ = MakeFakeModel();
};

TEST_F(ServerMetricsTest, TextHoldsRequestsAndEngineNumbers) {
  ExpectTextHas({"taopd_teacher_ready 0"});
  state_.SetReady(fake_.model);
  const InferenceRequest request = {.token_ids = {1, 2, 3}, .score = ScoreParams()};
  fake_.engine->Submit(request, [](absl::StatusOr<InferenceResult>) {});
  fake_.engine->Drain(absl::InfiniteFuture());
  metrics_.RecordRequest("grpc/Score", "OK", absl::Milliseconds(3));
  metrics_.RecordRequest("grpc/Score", "OK", absl::Milliseconds(40));
  const std::string duration = "taopd_teacher_request_duration_seconds";
  ExpectTextHas(
      {"taopd_teacher_ready 1", "taopd_teacher_requests_total{code=\"OK\",method=\"grpc/Score\"} 2",
       duration + "_bucket{method=\"grpc/Score\",le=\"0.005\"} 1",
       duration + "_count{method=\"grpc/Score\"} 2",
       "vllm:prompt_tokens_total{model_name=\"fake\"} 3", "taopd_teacher_max_queued_tokens 100000",
       "# TYPE taopd_teacher_scored_rows_total counter",
       "taopd_teacher_engine_heartbeat_age_seconds 0"});
}

TEST_F(ServerMetricsTest, GraphsAreCountedWhereThereAreSome) {
  state_.SetReady(fake_.model);
  EXPECT_THAT(metrics_.Text(state_), Not(HasSubstr("cuda_graph")));
  fake_.engine->SetStats({.graphs = {.num_graphs = 35,
                                     .num_captures = 2,
                                     .replayed_steps = 70,
                                     .padding_rows = 11,
                                     .eager_steps = 30}});
  ExpectTextHas({"taopd_teacher_cuda_graphs 35\n", "taopd_teacher_cuda_graph_captures_total 2\n",
                 "taopd_teacher_cuda_graph_steps_total{mode=\"replayed\"} 70\n",
                 "taopd_teacher_cuda_graph_steps_total{mode=\"eager\"} 30\n",
                 "taopd_teacher_cuda_graph_padding_rows_total 11\n"});
}

TEST_F(ServerMetricsTest, CacheNumbersHaveVllmsNames) {
  state_.SetReady(fake_.model);
  ExpectTextHas({"vllm:kv_cache_usage_perc{model_name=\"fake\"} 0\n"});
  fake_.engine->SetStats({.num_preempted = 3,
                          .prefix_query_tokens = 70,
                          .prefix_hit_tokens = 32,
                          .kv_blocks_in_use = 3,
                          .num_kv_blocks = 4});
  ExpectTextHas({"# TYPE vllm:kv_cache_usage_perc gauge",
                 "vllm:kv_cache_usage_perc{model_name=\"fake\"} 0.75\n",
                 "# TYPE vllm:prefix_cache_queries_total counter",
                 "vllm:prefix_cache_queries_total{model_name=\"fake\"} 70\n",
                 "vllm:prefix_cache_hits_total{model_name=\"fake\"} 32\n",
                 "vllm:num_preemptions_total{model_name=\"fake\"} 3\n"});
}

}  // namespace
}  // namespace taopd::testing
