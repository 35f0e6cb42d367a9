// A run's progress for the person who watches it.
//
//   step 120/200  loss 0.1234  tail 0.0031  teacher 0.0009  entropy 0.41  acc 37.5%  2315 tok/s ETA
//   4m10s
//
// On a terminal that line is rewritten in place, and lines that are worth keeping (milestones,
// texts) scroll by above it. Elsewhere (a file, a pod's log) it is a plain line, at most one every
// `plain_interval`. Columns whose metric was never written are left out; one that is not written at
// every step (an evaluation) shows its last value.
//
// Texts come from a model: control characters are written as \xNN, so that they cannot drive the
// terminal. Long ones are shortened, with their full length said; metrics.jsonl holds them whole.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/metrics/sink.h"

namespace taopd {

struct ConsoleColumn {
  enum class Style { kFixed, kSignificant, kPercent };

  std::string name;   // the metric: "loss/mean"
  std::string label;  // "loss"; a label that starts with a space follows the value: " tok/s"
  int precision = 3;  // digits after the point; kSignificant: digits in all
  Style style = Style::kFixed;
  bool milestone = false;  // a write that holds this metric leaves a line whatever the interval
};

// The columns of the drawing above, for the metrics that the trainer writes.
std::vector<ConsoleColumn> DefaultConsoleColumns();

struct ConsoleOptions {
  std::vector<ConsoleColumn> columns = DefaultConsoleColumns();
  int64_t total_steps = 0;  // 0: not known; then there is no ETA
  int64_t first_step = 0;   // steps done before this process (a resumed run)
  bool terminal = false;    // rewrite one line (isatty of the stream's descriptor)
  int terminal_width = 80;  // the status line is cut there, so that it stays one line
  absl::Duration plain_interval = absl::ZeroDuration();  // zero: every step
  int max_text_bytes = 160;                              // of a text; longer ones are shortened
};

class ConsoleSink final : public MetricSink {
 public:
  // `out` and `clock` must outlive the sink. The ETA counts from now.
  ConsoleSink(const ConsoleOptions& options, std::ostream* out, Clock* clock);
  ~ConsoleSink() override;  // ends the status line, so that a shell's prompt starts a new one

  absl::Status Write(int64_t step, const Metrics& metrics) override;
  absl::Status WriteText(int64_t step, const std::string& name, const std::string& text) override;
  absl::Status Flush() override;

 private:
  std::string StatusLine(int64_t step) const;
  void WriteLine(const std::string& line);  // one that stays
  absl::Status StreamStatus() const;

  const ConsoleOptions options_;
  std::ostream* const out_;
  Clock* const clock_;
  const absl::Time start_;
  std::map<std::string, double> last_values_;
  std::string status_line_;  // what stands on the terminal's last line now
  absl::Time last_plain_line_ = absl::InfinitePast();
};

}  // namespace taopd
