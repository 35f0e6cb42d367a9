// The report on one or more runs: one self-contained HTML file (no network, no other files) that
// can be opened, mailed or kept with the run.
//
// It is made from these files of a run's directory:
//   metrics.jsonl   required; see common/metrics/jsonl_sink.h
//   summary.json    an object of numbers, all optional: "teacher_accuracy",
//                   "student_accuracy_before" and "student_accuracy_after", each also with the
//                   endings "_low", "_high" and "_n"; "student_kl_to_teacher_before" and
//                   "student_kl_to_teacher_after"; "steps" and "seconds"
//   model/          its config.json or adapter_config.json says that the run has ended, as
//                   summary.json does
//   continued       says that the run goes on: model/ and summary.json are those of its first part
//   config.yaml     shown unchanged; it tells which of several runs belong together (comparison.h)
//   samples.jsonl   one generation per line: {"step", "when": "before" | "after" | "eval",
//                   "prompt", "response", "answer"?, "correct"?}
//
// A path may also name a file of `taopd-trainer bandit` (trainer/bandit/bandit_file.h), which
// becomes a section with the paper's two figures.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd::report {

// Returns the page that WriteReport writes, with the same errors.
absl::StatusOr<std::string> MakeReport(const std::vector<std::string>& paths);

// Writes the page atomically. The same files give the same bytes.
//
// Returns INVALID_ARGUMENT if there are no paths, NOT_FOUND if a run has no metrics.jsonl, and
// DATA_LOSS with file and line if the content of a file is damaged. An incomplete last line without
// a line break (the run was killed while it wrote the line) is left out, and the page says so.
absl::Status WriteReport(const std::vector<std::string>& paths, const std::string& output_path);

}  // namespace taopd::report
