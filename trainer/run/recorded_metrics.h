// What metrics.jsonl says of a run that is resumed. No LibTorch here.
//
// A checkpoint is written before the evaluation of its step, so what the evaluation recorded comes
// after the sizes that the checkpoint knows. A resumed run keeps it where it is complete, and
// evaluates again where it is not: samples are written first, and the line of metrics says that all
// is there.
//
// A power loss may have cut the files below the sizes that the checkpoint knows. The run then goes
// on from what is there, and the log says what is missing.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct RecordedMetrics {
  // Where the files are cut.
  int64_t metrics_bytes = 0;
  int64_t samples_bytes = 0;
  // Whether the evaluation after `step` steps is among what stays.
  bool has_evaluation = false;
  // The values of one metric by step, in the order of the file; lines that stay only.
  std::vector<std::pair<int64_t, double>> values;
};

// Reads the records of a run that continues after `step` steps from a checkpoint that knows the two
// sizes. `metric` may be empty. A file that is missing is empty; a line that is no JSON object, as
// a crash may leave it, is the end. Warns of a file that is shorter than its size, and cuts it
// after its last complete line.
absl::StatusOr<RecordedMetrics> ReadRecordedMetrics(const std::string& run_dir, int64_t step,
                                                    int64_t metrics_bytes, int64_t samples_bytes,
                                                    const std::string& metric);

}  // namespace taopd
