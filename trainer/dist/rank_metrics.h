// Combines the numbers that each rank measures for itself alone (its time, its memory, its client
// of the teacher) into those of the run. All other metrics of a step are summed over the ranks
// where they are counted, or are rank 0's by definition.
#pragma once

#include <string_view>

#include "common/base/status.h"
#include "common/dist/process_group.h"
#include "common/metrics/sink.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

enum class OverRanks { kLargest, kSmallest, kMean };

// The rule that combines the ranks' numbers of a metric. `name` is a metric's name or its group,
// such as "time/".
struct RankMetric {
  std::string_view name;
  OverRanks how;
};

// The first row that names the metric or its group applies.
inline constexpr RankMetric kRankMetrics[] = {
    {"time/step_s", OverRanks::kLargest},
    {"time/save_s", OverRanks::kLargest},
    {"time/evaluation_s", OverRanks::kLargest},
    {"time/tokens_per_s", OverRanks::kSmallest},  // tokens of all ranks over the longest time
    {"time/", OverRanks::kMean},                  // the phases of a step
    {"memory/", OverRanks::kLargest},             // compared with the memory plan of a rank
};

// Replaces the metrics in kRankMetrics by the combined numbers; other metrics stay unchanged. All
// ranks must call it with the same metrics in the same order.
absl::Status CombineRankMetrics(ProcessGroup* group, Metrics* metrics);

// Replaces the counters and times of a client by their sums over the ranks. All ranks must have the
// same teachers and endpoints. Momentary values (in_flight, queued, waiting) stay unchanged.
absl::Status SumOverRanks(ProcessGroup* group, TeacherClientStats* stats);

}  // namespace taopd
