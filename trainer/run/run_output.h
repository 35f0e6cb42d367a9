// Everything a run writes as it goes: RUN_DIR/{config.yaml, metrics.jsonl, samples.jsonl,
// tensorboard/}, the console and the Prometheus page. A sink that fails is logged and counted, and
// the run goes on. One thread writes; any thread may render the Prometheus page.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/io/jsonl.h"
#include "common/metrics/sink.h"
#include "trainer/eval/accuracy.h"

namespace taopd {

struct RunOutputOptions {
  std::string run_dir;
  int64_t total_steps = 0;
  // Of a resumed run: steps done, and where to cut the growing files. -1: a new run.
  int64_t resume_step = -1;
  int64_t metrics_bytes = 0;
  int64_t samples_bytes = 0;
};

class RunOutput {
 public:
  static absl::StatusOr<std::unique_ptr<RunOutput>> Open(const RunOutputOptions& options,
                                                         Clock* clock = Clock::Real());
  virtual ~RunOutput() = default;

  virtual void Write(int64_t step, const Metrics& metrics) = 0;
  // `when`: "before", "after" or "eval".
  virtual void WriteSamples(int64_t step, const std::string& when,
                            const std::vector<EvalSample>& samples) = 0;
  virtual int64_t metrics_bytes() const = 0;
  virtual int64_t samples_bytes() const = 0;
  virtual std::string PrometheusText() const = 0;
};

}  // namespace taopd
