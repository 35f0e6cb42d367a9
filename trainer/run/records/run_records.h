// The records of a run over its whole life: RunOutput, which is opened when the run begins and
// again after a roll-back, and the earlier records of a resumed run.
//
// All ranks call Open together; rank 0 writes, the others record nothing. Not thread-safe, except
// for PrometheusText.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/dist/process_group.h"
#include "trainer/run/records/recorded_metrics.h"
#include "trainer/run/records/run_output.h"
#include "trainer/run/resume/resume_check.h"
#include "trainer/run/train_state.h"

namespace taopd {

class RunRecords {
 public:
  // `group` must outlive the object. `watched_metric`, which may be empty, is the metric of
  // RecordedMetrics::values.
  RunRecords(ProcessGroup* group, const std::string& run_dir, int64_t total_steps,
             const RunFacts& settings, const std::string& watched_metric);

  // Returns what the run has recorded up to the state, and keeps it for Open, which does not read
  // it again. Changes no file.
  absl::StatusOr<RecordedMetrics> Read(const TrainState& state);
  // Opens the records of a new run or, with `continues`, cuts the existing ones to where the state
  // left them. After a failure the previous output stays open.
  absl::Status Open(const TrainState& state, bool continues);
  // Makes the records durable and stores their sizes in the state.
  void Sync(TrainState* state);

  // Returns what was recorded when the records were opened; empty for a new run.
  const RecordedMetrics& recorded() const { return recorded_; }
  RunOutput& output() { return *outputs_.back(); }
  // Returns the metrics of the open records as a page; empty before Open. Any thread may call it.
  std::string PrometheusText() const;

 private:
  absl::Status OpenOwn(const TrainState& state, bool continues);
  void Use(std::unique_ptr<RunOutput> output);

  ProcessGroup* const group_;
  const std::string watched_metric_;
  RunOutputOptions options_;
  RecordedMetrics recorded_;
  std::optional<RecordedMetrics> read_;  // by Read, for Open
  // The open output comes last. Other threads may still be reading the earlier ones, from before a
  // roll-back.
  std::vector<std::unique_ptr<RunOutput>> outputs_;
  std::atomic<const RunOutput*> newest_output_ = nullptr;
};

}  // namespace taopd
