// Whether a response's answer is right. One registry of graders, used by the evaluation inside
// `train`, by `eval` and by `grade`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct Verdict {
  bool correct = false;
  std::string extracted;  // what was compared; empty when nothing was found
  std::string reason;     // why, in a few words
};

// One row of the registry (registry.cc).
struct GraderInfo {
  std::string name;
  std::string summary;
};
const std::vector<GraderInfo>& AllGraders();
std::vector<std::string> GraderNames();

// Immutable; any thread. Grading never fails and never throws: what cannot be read is not correct,
// and its reason says so. Time and memory are bounded for any bytes (no clocks: the same verdict
// everywhere).
class Grader {
 public:
  // `answer_pattern` (RE2; exact, numeric and regex only): its first group is the answer in a
  // response, the first match counts; empty = the whole response. Other graders refuse one.
  static absl::StatusOr<std::unique_ptr<Grader>> Make(const std::string& name,
                                                      const std::string& answer_pattern);
  virtual ~Grader() = default;

  // `source`: the record's data source, for the grader "auto"; others ignore it.
  Verdict Grade(std::string_view response, std::string_view answer,
                std::string_view source = {}) const;

 protected:
  virtual Verdict GradeAnswer(std::string_view response, std::string_view answer,
                              std::string_view source) const = 0;
};

}  // namespace taopd
