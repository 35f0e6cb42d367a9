// The report of one or more runs: one HTML file that needs nothing else (no network, no other
// files), to be opened, mailed or kept with the run.
//
// A run's directory holds
//   metrics.jsonl   must be there; see common/metrics/jsonl_sink.h
//   summary.json    if the run has ended: "teacher_accuracy", "student_accuracy_before",
//                   "student_accuracy_after", each also with "_low", "_high" and "_n" at its end;
//                   "kl_before", "kl_after"; "steps", "seconds"
//   config.yaml     if it is there, is shown as it is
//   samples.jsonl   if it is there: {"step", "when": "before" | "after" | "eval", "prompt",
//                   "response", "answer"?, "correct"?} a line
//
// In place of a directory a file of `taopd-trainer bandit` may be named
// (trainer/bandit/bandit_file.h): it becomes a section with the paper's two figures.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// Writes the page atomically. The same files give the same bytes.
// INVALID_ARGUMENT without paths; NOT_FOUND when a run has no metrics.jsonl; DATA_LOSS with file
// and line for content that is damaged. A last line without its line break that is not whole (the
// run was killed while it wrote) is left out, and the page says so.
absl::Status WriteReport(const std::vector<std::string>& paths, const std::string& output_path);

}  // namespace taopd
