// Decides whether the answer in a response is right. `eval`, `grade` and the evaluation inside
// `train` all use this one registry of graders.
//
// Each folder below uses only the folders listed before it:
//   algebra/   expressions as trees, and equality between them
//   latex/     from LaTeX to an expression
//   graders/   the place of the answer in a response, and the rules of each grader
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace taopd::grading {

struct Verdict {
  bool correct = false;
  // The answer that was compared. Empty if no answer was found.
  std::string extracted;
  // The reason for the verdict in a few words. Never empty.
  std::string reason;
};

// A grader as `taopd-trainer grade --list` shows it.
struct GraderInfo {
  std::string name;
  std::string summary;
};
// All graders, in the order of the registry (graders/registry.cc).
const std::vector<GraderInfo>& AllGraders();
std::vector<std::string> GraderNames();

// Immutable; any thread may use it. Grading never fails and never throws: an answer that cannot be
// read is not correct, and the verdict's reason says so. Time and memory are bounded for any bytes.
// The bounds count operations and never read a clock, so every machine reaches the same verdict.
class Grader {
 public:
  // `answer_pattern` is an RE2 expression that finds the answer in a response: the answer is the
  // first group of the first match. Without a pattern the whole response is the answer. Only
  // `exact`, `numeric` and `auto` take a pattern; with one, `auto` behaves as `exact`.
  //
  // Returns INVALID_ARGUMENT if the name is unknown, if the pattern cannot be compiled or has no
  // group, or if a grader that takes no pattern gets one.
  static absl::StatusOr<std::unique_ptr<Grader>> Make(const std::string& name,
                                                      const std::string& answer_pattern);
  virtual ~Grader() = default;

  // `answer` is the reference answer. `source` is the record's data source. The grader `auto`
  // chooses its rules by the source; the others ignore it.
  Verdict Grade(std::string_view response, std::string_view answer,
                std::string_view source = {}) const;

 protected:
  virtual Verdict GradeAnswer(std::string_view response, std::string_view answer,
                              std::string_view source) const = 0;
};

}  // namespace taopd::grading
