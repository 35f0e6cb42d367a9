// The records of a run: RUN_DIR/metrics.jsonl, samples.jsonl and tensorboard/, the lines on the
// terminal and the Prometheus page. The run continues if a record cannot be written: lines of the
// two files wait in memory for disk space (common/io/buffered_jsonl.h), and an event of
// tensorboard/ is lost with a warning, since metrics.jsonl has its numbers.
//
// Threads: one thread writes; any thread may call PrometheusText.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/io/jsonl.h"
#include "common/metrics/event_file.h"
#include "common/metrics/sink.h"
#include "trainer/eval/accuracy.h"

namespace taopd {

struct RunOutputOptions {
  std::string run_dir;
  int64_t total_steps = 0;
  // For a resumed run, the finished steps and the sizes to which its files are cut; resume_step is
  // -1 for a new run.
  int64_t resume_step = -1;
  int64_t metrics_bytes = 0;
  int64_t samples_bytes = 0;
  Hparams settings = {};  // for TensorBoard
};

// An object of this class itself records nothing. Ranks other than 0 have one.
class RunOutput {
 public:
  // Creates the directory and opens all records. `clock` must outlive the result.
  static absl::StatusOr<std::unique_ptr<RunOutput>> Open(const RunOutputOptions& options,
                                                         Clock* clock = Clock::Real());
  virtual ~RunOutput() = default;

  // Records metrics as of `step` finished steps.
  virtual void Write(int64_t /*step*/, const Metrics&) {}
  // Records responses of the evaluation after `step` steps. `when` is "before" or "after" training,
  // or "eval" in between.
  virtual void WriteSamples(int64_t /*step*/, const std::string& /*when*/,
                            const std::vector<EvalSample>&) {}
  // Writes the waiting records and makes the two files durable, so that a checkpoint may name their
  // sizes.
  virtual void Sync() {}
  // Return the current sizes of the two files, for TrainState.
  virtual int64_t metrics_bytes() const { return 0; }
  virtual int64_t samples_bytes() const { return 0; }
  // Return the number of records that wait in memory for disk space, and of those that were dropped
  // for lack of space.
  virtual int64_t num_waiting() const { return 0; }
  virtual int64_t num_dropped() const { return 0; }
  virtual std::string PrometheusText() const { return ""; }
};

}  // namespace taopd
