#include "server/serving/serving_state.h"

#include "server/metrics/server_metrics.h"
#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

using testing::FakeModel;
using ::testing::HasSubstr;
using testing::MakeFakeModel;
using ::testing::Not;

TEST(ServingStateTest, AdmitsOnlyWhenReady) {
  ServingState state(Clock::Real(), absl::Seconds(1));
  EXPECT_ERROR(state.Admit(), absl::StatusCode::kUnavailable, "loading");
  EXPECT_ERROR(state.Health(), absl::StatusCode::kUnavailable, "loading");
  state.SetReady(MakeFakeModel().model);
  EXPECT_OK(state.Admit());
  EXPECT_OK(state.Health());
  state.SetDraining();
  EXPECT_ERROR(state.Admit(), absl::StatusCode::kUnavailable, "draining");
  EXPECT_ERROR(state.Health(), absl::StatusCode::kUnavailable, "draining");
  EXPECT_NE(state.model(), nullptr);
}

TEST(ServingStateTest, FailedLoadIsNotReadyAndHidesTheReason) {
  ServingState state(Clock::Real(), absl::Seconds(1));
  state.SetFailed(NotFound("/secret/path"));
  EXPECT_ERROR(state.Admit(), absl::StatusCode::kUnavailable, "could not be loaded");
  EXPECT_THAT(std::string(state.Admit().status().message()), Not(HasSubstr("secret")));
}

TEST(ServingStateTest, StallCountsFromTheFirstLookAtWaitingWork) {
  ManualClock clock;
  ServingState state(&clock, absl::Seconds(10));
  const FakeModel fake = MakeFakeModel();
  state.SetReady(fake.model);
  clock.Advance(absl::Hours(1));
  EXPECT_OK(state.Health());  // idle for an hour

  fake.engine->Hold(true);
  InferenceRequest request;
  request.token_ids = {1, 2};
  request.score = ScoreParams();
  const RequestHandle handle = fake.engine->Submit(request, [](absl::StatusOr<InferenceResult>) {});
  EXPECT_OK(state.Health());
  clock.Advance(absl::Seconds(10));
  EXPECT_OK(state.Health());
  EXPECT_EQ(state.HeartbeatAgeSeconds(), 10.0);
  clock.Advance(absl::Seconds(1));
  EXPECT_ERROR(state.Health(), absl::StatusCode::kUnavailable, "no step for 11 s");

  fake.engine->Cancel(handle);
  fake.engine->Drain(absl::InfiniteFuture());
  EXPECT_OK(state.Health());  // work is gone
}

TEST(ServingStateTest, FailedDeviceIsNotHealthy) {
  ServingState state(Clock::Real(), absl::Seconds(10));
  const FakeModel fake = MakeFakeModel();
  state.SetReady(fake.model);
  EXPECT_OK(state.Health());
  EngineStats stats;
  stats.device_failed = true;
  fake.engine->SetStats(stats);
  EXPECT_ERROR(state.Health(), absl::StatusCode::kUnavailable, "the device no longer computes");
}

// A process that loads or drains is not to be started again.
TEST(ServingStateTest, OnlyFailuresCallForAnotherProcess) {
  ManualClock clock;
  ServingState state(&clock, absl::Seconds(10));
  EXPECT_ERROR(state.Health(), absl::StatusCode::kUnavailable, "loading");
  EXPECT_OK(state.Alive());
  const FakeModel fake = MakeFakeModel();
  state.SetReady(fake.model);
  EngineStats stats;
  stats.num_running = 1;
  fake.engine->SetStats(stats);
  state.SetDraining();
  EXPECT_OK(state.Alive());
  clock.Advance(absl::Seconds(11));
  EXPECT_ERROR(state.Alive(), absl::StatusCode::kUnavailable, "no step for 11 s");
  fake.engine->SetStats(EngineStats());
  EXPECT_OK(state.Alive());
  state.SetListeners(absl::InternalError("HTTP does not answer"));
  EXPECT_ERROR(state.Alive(), absl::StatusCode::kUnavailable, "HTTP does not answer");
}

// A long step beats after each layer.
TEST(ServingStateTest, BeatsDuringAStepAreHealthy) {
  ManualClock clock;
  ServingState state(&clock, absl::Seconds(10));
  const FakeModel fake = MakeFakeModel();
  state.SetReady(fake.model);
  EngineStats stats;
  stats.num_running = 1;
  for (int layer = 0; layer < 5; ++layer) {
    stats.last_step = clock.Now();
    fake.engine->SetStats(stats);
    EXPECT_OK(state.Health());
    clock.Advance(absl::Seconds(9));
    EXPECT_OK(state.Health());
  }
  clock.Advance(absl::Seconds(2));
  EXPECT_ERROR(state.Health(), absl::StatusCode::kUnavailable, "no step for 11 s");
}

TEST(ByteBudgetTest, RefusesAboveTheLimitAndReturnsBytes) {
  ByteBudget budget(100);
  {
    const ByteBudget::Reservation first = budget.TryReserve(60);
    EXPECT_TRUE(first);
    EXPECT_FALSE(budget.TryReserve(41));
    ByteBudget::Reservation second = budget.TryReserve(40);
    EXPECT_TRUE(second);
    EXPECT_EQ(budget.num_used(), 100);
    second = ByteBudget::Reservation();
    EXPECT_EQ(budget.num_used(), 60);
  }
  EXPECT_EQ(budget.num_used(), 0);
}

TEST(ByteBudgetTest, AClientOverItsShareIsRefusedWhereOthersAreNot) {
  ByteBudget budget(100, 0.5);
  {
    const ByteBudget::Reservation greedy = budget.TryReserve(50, "greedy");
    ASSERT_TRUE(greedy);
    EXPECT_FALSE(budget.TryReserve(1, "greedy"));
    EXPECT_EQ(budget.Check(1, "greedy"), ByteBudget::Refusal::kClientShare);
    EXPECT_EQ(budget.Check(51, "greedy"), ByteBudget::Refusal::kFull);
    ByteBudget::Reservation other = budget.TryReserve(25, "other");  // as much as is then left
    EXPECT_TRUE(other);
    EXPECT_FALSE(budget.TryReserve(1, "other"));
    EXPECT_FALSE(budget.TryReserve(26));
    EXPECT_TRUE(budget.TryReserve(25));  // nobody's share
    EXPECT_EQ(budget.num_refused(ByteBudget::Refusal::kClientShare), 2u);
    EXPECT_EQ(budget.num_refused(ByteBudget::Refusal::kFull), 1u);
    other = ByteBudget::Reservation();
    EXPECT_FALSE(budget.TryReserve(1, "greedy"));  // it holds as much as before
    EXPECT_TRUE(budget.TryReserve(25, "other"));
  }
  EXPECT_TRUE(budget.TryReserve(50, "greedy"));
  EXPECT_EQ(budget.num_used(), 0);
}

TEST(ByteBudgetTest, AClientHoldsTheSumOfItsReservations) {
  ByteBudget budget(100, 0.5);
  ByteBudget::Reservation first = budget.TryReserve(20, "a");
  ByteBudget::Reservation second = budget.TryReserve(20, "a");
  first = ByteBudget::Reservation();
  EXPECT_EQ(budget.num_used(), 20);
  // 3 bytes stay free for smaller requests.
  EXPECT_EQ(budget.Check(28, "a"), ByteBudget::Refusal::kClientShare);
  EXPECT_EQ(budget.Check(27, "a"), ByteBudget::Refusal::kNone);
  ByteBudget::Reservation moved = std::move(second);
  EXPECT_FALSE(second);
  EXPECT_EQ(budget.num_used(), 20);
  first = std::move(moved);
  first = ByteBudget::Reservation();
  EXPECT_EQ(budget.num_used(), 0);
  EXPECT_EQ(budget.Check(50, "a"), ByteBudget::Refusal::kNone);
  EXPECT_EQ(budget.num_clients(), 0u);  // clients come and go
}

TEST(ByteBudgetTest, AClientsLongRequestsLeaveRoomForItsShortOnes) {
  for (int64_t length : {8, 25, 50, 100, 400}) {  // each could fill the share without a rest
    ByteBudget budget(1600, 0.5);
    std::vector<ByteBudget::Reservation> flood;
    while (ByteBudget::Reservation next = budget.TryReserve(length, "a"))
      flood.push_back(std::move(next));
    EXPECT_GE(budget.num_used(), 800 - 2 * length);
    EXPECT_EQ(budget.Check(std::min<int64_t>(length / 2, 25), "a"), ByteBudget::Refusal::kNone)
        << length;
  }
}

// An empty text has no tokens and reserves no bytes.
TEST(ByteBudgetTest, NothingMayBeReservedAndReturnedInAnyOrder) {
  ByteBudget budget(100, 0.5);
  for (const bool nothing_first : {false, true}) {
    ByteBudget::Reservation nothing = budget.TryReserve(0, "a");
    ByteBudget::Reservation some = budget.TryReserve(10, "a");
    EXPECT_TRUE(nothing);
    (nothing_first ? nothing : some) = ByteBudget::Reservation();
    (nothing_first ? some : nothing) = ByteBudget::Reservation();
    EXPECT_EQ(budget.num_used(), 0);
    EXPECT_EQ(budget.num_clients(), 0u);
  }
}

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
  InferenceRequest request;
  request.token_ids = {1, 2, 3};
  request.score = ScoreParams();
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
  EngineStats stats;
  stats.graphs = {.num_graphs = 35,
                  .num_captures = 2,
                  .replayed_steps = 70,
                  .padding_rows = 11,
                  .eager_steps = 30};
  fake_.engine->SetStats(stats);
  ExpectTextHas({"taopd_teacher_cuda_graphs 35\n", "taopd_teacher_cuda_graph_captures_total 2\n",
                 "taopd_teacher_cuda_graph_steps_total{mode=\"replayed\"} 70\n",
                 "taopd_teacher_cuda_graph_steps_total{mode=\"eager\"} 30\n",
                 "taopd_teacher_cuda_graph_padding_rows_total 11\n"});
}

TEST_F(ServerMetricsTest, CacheNumbersHaveVllmsNames) {
  state_.SetReady(fake_.model);
  ExpectTextHas({"vllm:kv_cache_usage_perc{model_name=\"fake\"} 0\n"});
  EngineStats stats;
  stats.num_preempted = 3;
  stats.prefix_query_tokens = 70;
  stats.prefix_hit_tokens = 32;
  stats.kv_blocks_in_use = 3;
  stats.num_kv_blocks = 4;
  fake_.engine->SetStats(stats);
  ExpectTextHas({"# TYPE vllm:kv_cache_usage_perc gauge",
                 "vllm:kv_cache_usage_perc{model_name=\"fake\"} 0.75\n",
                 "# TYPE vllm:prefix_cache_queries_total counter",
                 "vllm:prefix_cache_queries_total{model_name=\"fake\"} 70\n",
                 "vllm:prefix_cache_hits_total{model_name=\"fake\"} 32\n",
                 "vllm:num_preemptions_total{model_name=\"fake\"} 3\n"});
}

}  // namespace
}  // namespace taopd
