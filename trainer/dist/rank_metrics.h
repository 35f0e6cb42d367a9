// Combines the numbers of the ranks into those of the run. Counts of a rank's part of a step are
// summed (RankSums). Measurements of a rank alone (its time, its memory, its client of the teacher)
// are combined by rules. All other metrics are rank 0's by definition.
#pragma once

#include <absl/time/time.h>

#include <functional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "common/base/status.h"
#include "common/dist/process_group.h"
#include "common/metrics/sink.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Registers numbers that each rank has counted for its part, then replaces them by those of all
// ranks. The numbers must outlive the object. All ranks must register the same number of them.
class RankSums {
 public:
  // `number` is a double or an integer. The sum of integers must be below 2^53.
  template <typename T>
  void Add(T* number) {
    (std::is_integral_v<T> ? counts_ : reals_)
        .push_back({[number] { return static_cast<double>(*number); },
                    [number](double sum) { *number = static_cast<T>(sum); }});
  }
  void Add(absl::Duration* duration) {
    reals_.push_back({[duration] { return absl::ToDoubleSeconds(*duration); },
                      [duration](double sum) { *duration = absl::Seconds(sum); }});
  }
  // Registers a number that is replaced by the largest of the ranks' values.
  void AddLargest(double* number) { largest_.push_back(number); }

  // Replaces each number by its sum (or its largest value) over the ranks of `group`, which is the
  // same on all ranks. With one rank nothing changes.
  absl::Status Reduce(ProcessGroup* group) const;

 private:
  struct Number {
    std::function<double()> get;
    std::function<void(double)> set;
  };
  std::vector<Number> reals_, counts_;
  std::vector<double*> largest_;
};

enum class RankReduction { kLargest, kSmallest, kMean };

// The rule that combines the ranks' numbers of a metric. `name` is a metric's name or its group,
// such as "time/".
struct RankMetric {
  std::string_view name;
  RankReduction reduction;
};

// The first row that names the metric or its group applies.
inline constexpr RankMetric kRankMetrics[] = {
    {"time/step_s", RankReduction::kLargest},
    {"time/save_s", RankReduction::kLargest},
    {"time/evaluation_s", RankReduction::kLargest},
    {"time/tokens_per_s", RankReduction::kSmallest},  // tokens of all ranks over the longest time
    {"time/", RankReduction::kMean},                  // the phases of a step
    {"memory/", RankReduction::kLargest},             // compared with the memory plan of a rank
};

// Replaces the metrics in kRankMetrics by the combined numbers; other metrics stay unchanged. All
// ranks must call it with the same metrics in the same order.
absl::Status CombineRankMetrics(ProcessGroup* group, Metrics* metrics);

// Replaces the counters and times of a client by their sums over the ranks. All ranks must have the
// same teachers and endpoints. Momentary values (in_flight, queued, waiting) stay unchanged.
absl::Status SumOverRanks(ProcessGroup* group, TeacherClientStats* stats);

}  // namespace taopd
