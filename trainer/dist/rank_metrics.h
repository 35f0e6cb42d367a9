// What a run on several ranks reports of numbers that each rank measures of itself alone: its time,
// its memory, its client of the teacher. Everything else in the metrics of a step is summed over
// the ranks where it is counted, or is rank 0's by definition.
#pragma once

#include <string_view>

#include "common/base/status.h"
#include "common/dist/process_group.h"
#include "common/metrics/sink.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

enum class OverRanks { kLargest, kSmallest, kMean };

// How the ranks' numbers of a metric become one. `name` is a metric's name, or its group: "time/".
struct RankMetric {
  std::string_view name;
  OverRanks how;
};

// The first row whose name is the metric's, or its group's, counts.
inline constexpr RankMetric kRankMetrics[] = {
    {"time/step_s", OverRanks::kLargest},
    {"time/save_s", OverRanks::kLargest},
    {"time/evaluation_s", OverRanks::kLargest},
    {"time/tokens_per_s", OverRanks::kSmallest},  // tokens of all ranks, over the longest time
    {"time/", OverRanks::kMean},                  // the phases of a step
    {"memory/", OverRanks::kLargest},             // what the plan of a rank is compared with
};

// Replaces the metrics of kRankMetrics by those of all ranks. All ranks have the same ones, in the
// same order, and call it. Other metrics stay what they are.
absl::Status CombineRankMetrics(ProcessGroup* group, Metrics* metrics);

// Replaces the counters and times of a client by the sums over the ranks. All ranks have the same
// teachers and endpoints. What a client holds at this moment (in_flight, queued, waiting) stays.
absl::Status SumOverRanks(ProcessGroup* group, TeacherClientStats* stats);

}  // namespace taopd
