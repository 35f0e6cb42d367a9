// Whether a response's answer is right: extraction by a pattern, then comparison.
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"

namespace taopd {

struct Verdict {
  bool correct = false;
  std::string extracted;  // what was compared; empty when nothing was found
};

// Immutable; any thread. Patterns are RE2: linear time whatever the response.
class Grader {
 public:
  // kind "exact" (same text after trimming spaces) or "numeric" (same number, commas ignored).
  // `answer_pattern`: its first group is the answer, the first match counts; empty = the whole response.
  static absl::StatusOr<std::unique_ptr<Grader>> Make(const std::string& kind, const std::string& answer_pattern);
  virtual ~Grader() = default;
  virtual Verdict Grade(const std::string& response, const std::string& answer) const = 0;
};

struct Interval {
  double low = 0;
  double high = 1;
};
// Wilson's score interval at 95 % for a share of `successes` out of `trials` (Wilson, 1927).
Interval WilsonInterval(double successes, double trials);

}  // namespace taopd
