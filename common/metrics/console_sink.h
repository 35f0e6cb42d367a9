// Shows a run's progress to a person, as one line per step:
//
//   step 120/200  loss 0.1234  tail 0.0031  teacher 0.0009  entropy 0.41  acc 37.5%  2315 tok/s
//
// On a terminal, the line is rewritten in place, and a copy of a milestone's line stays above it.
// Elsewhere (a file, a pod's log), plain lines are written, at most one per `plain_interval`; the
// lines of milestones and of the last step are always written. The last step has one line: its
// milestone's or, if there is none, one that is written when the sink is destroyed.
//
// A column whose metric was never written is left out. A column whose metric is not written at
// every step, such as an evaluation's, shows its last value.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/metrics/sink.h"
#include "common/metrics/step_time.h"

namespace taopd {

struct ConsoleColumn {
  enum class Style { kFixed, kSignificant, kPercent };

  std::string name;   // the metric: "loss/mean"
  std::string label;  // "loss"; a label that starts with a space follows the value: " tok/s"
  int precision = 3;  // digits after the point; for kSignificant, digits in all
  Style style = Style::kFixed;
  bool is_milestone = false;  // whether each write of this metric leaves a line
};

// The columns of the line above, for the metrics that the trainer writes.
std::vector<ConsoleColumn> DefaultConsoleColumns();

struct ConsoleOptions {
  std::vector<ConsoleColumn> columns = DefaultConsoleColumns();
  int64_t total_steps = 0;   // 0 if unknown; no ETA is shown then
  int64_t first_step = 0;    // steps done before this process started (a resumed run)
  bool is_terminal = false;  // whether to rewrite one line (isatty of the stream's descriptor)
  int terminal_width = 80;   // the status line is cut to this width, so that it stays one line
  absl::Duration plain_interval = absl::ZeroDuration();  // zero: a line for every step
};

class ConsoleSink final : public MetricSink {
 public:
  // `out` and `clock` must outlive the sink. The ETA is computed from the times that the steps
  // report (step_time.h), so that pauses do not count. If there are none, it is computed from the
  // time since construction.
  ConsoleSink(const ConsoleOptions& options, std::ostream* out, Clock* clock)
      : options_(options), out_(out), clock_(clock), start_(clock->Now()) {}
  // Writes the last step's line if no milestone has, and ends the status line, so that a shell's
  // prompt starts a new one.
  ~ConsoleSink() override;

  absl::Status Write(int64_t step, const Metrics& metrics) override;

 private:
  std::string StatusLine(int64_t step) const;
  // Writes a line that stays.
  void WriteLine(const std::string& line);

  const ConsoleOptions options_;
  std::ostream* const out_;
  Clock* const clock_;
  const absl::Time start_;
  StepTime step_time_;
  std::map<std::string, double> last_values_;
  std::string status_line_;  // what the terminal's last line shows now
  std::string last_line_;    // the last step's plain line, not yet written
  absl::Time last_plain_line_ = absl::InfinitePast();
};

}  // namespace taopd
