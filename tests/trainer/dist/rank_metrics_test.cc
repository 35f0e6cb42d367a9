// Tests of the numbers that each rank measures for itself. The ranks are threads of this process.
#include "trainer/dist/rank_metrics.h"

#include <map>
#include <string>

#include "tests/common/dist/rank_threads.h"
#include "trainer/teacher/teacher_metrics.h"

namespace taopd::testing {
namespace {

std::map<std::string, double> AsMap(const Metrics& metrics) {
  return {metrics.begin(), metrics.end()};
}

TEST(RankMetrics, EachIsCombinedAsTheTableSays) {
  OnRanks(3, ProcessGroupOptions(), [](ProcessGroup& group) {
    const auto rank = static_cast<double>(group.rank());
    // Rank 0 never has the largest or the smallest number.
    const double mine = group.rank() == 0 ? 5 : 10 * rank - 8;  // 5, 2, 12
    Metrics metrics = {{"loss/mean", 7},         {"time/step_s", mine},
                       {"time/forward_s", mine}, {"time/tokens_per_s", mine},
                       {"time/save_s", mine},    {"memory/host_peak_gb", mine},
                       {"time/new_phase_s", 0},  {"timer", rank}};
    ASSERT_OK(CombineRankMetrics(&group, &metrics));
    const auto all = AsMap(metrics);
    EXPECT_EQ(all.at("loss/mean"), 7);
    EXPECT_EQ(all.at("time/step_s"), 12);
    EXPECT_NEAR(all.at("time/forward_s"), 19.0 / 3, 1e-12);
    EXPECT_EQ(all.at("time/tokens_per_s"), 2);
    EXPECT_EQ(all.at("time/save_s"), 12);
    EXPECT_EQ(all.at("memory/host_peak_gb"), 12);
    EXPECT_EQ(all.at("timer"), rank) << "not of the group time/";
    group.Leave();
  });
}

TEST(RankMetrics, TeacherCountersAreSumsAndLatencyIsOverAllAttempts) {
  OnRanks(2, ProcessGroupOptions(), [](ProcessGroup& group) {
    const bool is_root = group.is_root();
    TeacherClientStats stats;
    stats.retries = is_root ? 1 : 4;
    stats.failures = is_root ? 0 : 2;
    stats.hedges = 3;
    stats.cache_hits = is_root ? 0 : 6;  // rank 0 alone would not have the metric
    stats.age = absl::Seconds(10);
    stats.queued = group.rank();
    EndpointStats endpoint;
    endpoint.name = "grpc://a:1";
    endpoint.attempts = is_root ? 32 : 34;
    endpoint.failures = is_root ? 32 : 2;  // all of rank 0's attempts fail
    endpoint.bytes_sent = 1000;
    endpoint.latency = absl::Seconds(is_root ? 0 : 16);
    endpoint.left_out = absl::Seconds(is_root ? 10 : 0);
    stats.endpoints = {endpoint};
    TeacherClientStats one = stats;
    one.name = "math";
    stats.teachers = {one};
    ASSERT_OK(SumOverRanks(&group, &stats));
    const auto all = AsMap(TeacherMetrics(stats));
    EXPECT_EQ(all.at("teacher/retries"), 5);
    EXPECT_EQ(all.at("teacher/failures"), 2);
    EXPECT_EQ(all.at("teacher/hedges"), 6);
    EXPECT_EQ(all.at("teacher/cache_hits"), 6);
    EXPECT_EQ(all.at("teacher/a_1/attempts"), 66);
    EXPECT_EQ(all.at("teacher/a_1/failures"), 34);
    EXPECT_EQ(all.at("teacher/a_1/bytes_sent"), 2000);
    EXPECT_EQ(all.at("teacher/a_1/latency_s"), 0.5);
    EXPECT_EQ(all.at("teacher/a_1/left_out_share"), 0.5);
    EXPECT_EQ(all.at("teacher/math/retries"), 5);
    EXPECT_EQ(all.at("teacher/math/a_1/attempts"), 66);
    EXPECT_EQ(stats.queued, group.rank());
    group.Leave();
  });
}

}  // namespace
}  // namespace taopd::testing
