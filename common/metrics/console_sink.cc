#include "common/metrics/console_sink.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>

namespace taopd {
namespace {

constexpr char kClearLine[] = "\r\x1b[K";

std::string FormatValue(const ConsoleColumn& column, double value) {
  // 1e300 with digits after the point would fill the screen.
  const bool is_huge = std::abs(value) >= 1e9;
  switch (column.style) {
    case ConsoleColumn::Style::kFixed:
      if (is_huge) return absl::StrFormat("%.3g", value);
      return absl::StrFormat("%.*f", column.precision, value);
    case ConsoleColumn::Style::kSignificant:
      return absl::StrFormat("%.*g", column.precision, value);
    case ConsoleColumn::Style::kPercent:
      return absl::StrFormat("%.*f%%", is_huge ? 0 : column.precision,
                             std::clamp(100 * value, -1e11, 1e11));
  }
  return "";
}

// Returns texts like "45s", "4m10s", "3h05m", "2d04h".
std::string FormatEta(absl::Duration duration) {
  const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(duration, absl::Seconds(1)));
  const auto two_digits = [](int64_t n) { return Concat(n < 10 ? "0" : "", n); };
  if (seconds < 60) return Concat(seconds, "s");
  if (seconds < 3600) return Concat(seconds / 60, "m", two_digits(seconds % 60), "s");
  if (seconds < 86400) return Concat(seconds / 3600, "h", two_digits(seconds / 60 % 60), "m");
  return Concat(seconds / 86400, "d", two_digits(seconds / 3600 % 24), "h");
}

// Returns at most max_bytes of the text, without half a UTF-8 character at the end.
std::string Shortened(const std::string& text, int max_bytes) {
  if (text.size() <= static_cast<size_t>(max_bytes)) return text;
  auto end = static_cast<size_t>(max_bytes);
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace

std::vector<ConsoleColumn> DefaultConsoleColumns() {
  using Style = ConsoleColumn::Style;
  return {
      {"loss/mean", "loss", 4, Style::kFixed, false},
      {"policy/student_tail", "tail", 2, Style::kSignificant, false},
      {"policy/teacher_tail", "teacher", 2, Style::kSignificant, false},
      {"policy/entropy", "entropy", 2, Style::kFixed, false},
      {"rollout/accuracy", "acc", 1, Style::kPercent, false},
      {"eval/accuracy", "eval", 1, Style::kPercent, true},
      {"eval/kl_to_teacher", "eval KL", 3, Style::kSignificant, true},
      {"time/tokens_per_s", " tok/s", 0, Style::kFixed, false},
  };
}

ConsoleSink::~ConsoleSink() {
  if (!last_line_.empty()) *out_ << last_line_;
  if (!status_line_.empty() || !last_line_.empty()) *out_ << '\n' << std::flush;
}

absl::Status ConsoleSink::Write(int64_t step, const Metrics& metrics) {
  for (const auto& [name, value] : metrics) last_values_[name] = value;
  step_time_.Add(metrics);
  const bool is_milestone =
      std::any_of(options_.columns.begin(), options_.columns.end(), [&](const auto& column) {
        return column.is_milestone &&
               std::any_of(metrics.begin(), metrics.end(),
                           [&](const auto& metric) { return metric.first == column.name; });
      });
  const std::string line = StatusLine(step);
  const bool is_last = options_.total_steps > 0 && step >= options_.total_steps;
  if (options_.is_terminal) {
    if (is_milestone && is_last) status_line_.clear();  // the line that stays replaces it
    if (is_milestone) WriteLine(line);
    if (!is_milestone || !is_last) {
      status_line_ = Shortened(line, std::max(options_.terminal_width - 1, 1));
      *out_ << kClearLine << status_line_;
    }
  } else if (const absl::Time now = clock_->Now();
             is_milestone || (!is_last && now - last_plain_line_ >= options_.plain_interval)) {
    last_plain_line_ = now;
    last_line_.clear();
    WriteLine(line);
  } else if (is_last) {
    last_line_ = line;
  }
  out_->flush();
  if (out_->good()) return absl::OkStatus();
  out_->clear();  // the next line is tried again
  return Unavailable("the console cannot be written");
}

std::string ConsoleSink::StatusLine(int64_t step) const {
  std::string line = Concat("step ", step);
  if (options_.total_steps > 0) line += Concat("/", options_.total_steps);
  for (const ConsoleColumn& column : options_.columns) {
    const auto value = last_values_.find(column.name);
    if (value == last_values_.end()) continue;
    const std::string text = FormatValue(column, value->second);
    line += "  ";
    line += column.label.starts_with(' ') ? text + column.label : column.label + " " + text;
  }
  const int64_t num_done = step - options_.first_step;
  if (num_done > 0 && options_.total_steps > step) {
    const double steps_left = static_cast<double>(options_.total_steps - step);
    const absl::Duration step_time =
        step_time_.num_steps() > 0 ? step_time_.Mean() : (clock_->Now() - start_) / num_done;
    line += "  ETA " + FormatEta(step_time * steps_left);
  }
  return line;
}

void ConsoleSink::WriteLine(const std::string& line) {
  if (options_.is_terminal) *out_ << kClearLine;
  *out_ << line << '\n';
  if (options_.is_terminal) *out_ << status_line_;
}

}  // namespace taopd
