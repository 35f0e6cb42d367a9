// Reads metrics.jsonl of a run that is resumed. It does not depend on LibTorch.
//
// A checkpoint is written before the evaluation of its step, so the evaluation's records come after
// the sizes in the checkpoint. With eval.mode beside, lines of later steps may lie between them,
// and the evaluation may be one of an earlier step. A resumed run keeps the records of all
// evaluations up to the checkpoint's step if they are complete; an evaluation without a record is
// made again. Samples are written first, so the line of metrics shows that the records are
// complete.
//
// A power loss may have cut the files below the sizes in the checkpoint. The run then continues
// from the remaining records, and logs what is missing.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct RecordedMetrics {
  // The sizes to which the files are cut.
  int64_t metrics_bytes = 0;
  int64_t samples_bytes = 0;
  // The lines after these sizes that are kept nevertheless (KeepLaterRecords).
  std::string later_metrics, later_samples;
  // The steps whose evaluations are kept.
  std::set<int64_t> evaluated;
  // Whether the evaluation after `step` steps is kept.
  bool has_evaluation = false;
  // The values of one metric by step, in the order of the file, from the lines that are kept.
  std::vector<std::pair<int64_t, double>> values;
};

// Reads the records of a run that continues after `step` steps from a checkpoint with these two
// sizes. `metric` may be empty. A missing file counts as empty. A line that is not a JSON object,
// which a crash may leave, ends the file. Warns of a file that is shorter than it should be, and
// cuts it after its last complete line.
absl::StatusOr<RecordedMetrics> ReadRecordedMetrics(const std::string& run_dir, int64_t step,
                                                    int64_t metrics_bytes, int64_t samples_bytes,
                                                    const std::string& metric);

// Moves the later lines to the ends of the cut files, whose sizes grow. Does nothing if there are
// none. Replaces each file atomically, samples.jsonl first.
absl::Status KeepLaterRecords(const std::string& run_dir, RecordedMetrics* record);

}  // namespace taopd
