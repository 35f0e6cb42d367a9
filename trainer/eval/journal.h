// Every response of an evaluation as JSON Lines: a record for people, and what a second start of
// the same evaluation goes on from. The first line is {"evaluation": {...}}, the configuration;
// each further one is a response.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/io/jsonl.h"

namespace taopd {

// One thread.
class EvalJournal {
 public:
  using Rows =
      std::map<std::pair<int64_t, int64_t>, nlohmann::ordered_json>;  // by (problem, sample)

  // Opens or makes the file. FAILED_PRECONDITION when it holds another evaluation (the message
  // names the first setting that differs, with both values) or anything else; `overwrite` starts
  // anew whatever it holds. Half a line at the end, left by a process that was killed, is cut off.
  static absl::StatusOr<EvalJournal> Open(const std::string& path,
                                          const nlohmann::ordered_json& evaluation, bool overwrite);

  // Responses that were there at Open.
  const Rows& rows() const { return rows_; }
  // `row` holds the numbers "problem" and "sample".
  absl::Status Add(const nlohmann::ordered_json& row) { return writer_.Write(row); }
  const std::string& path() const { return path_; }

 private:
  EvalJournal(std::string path, JsonlWriter writer, Rows rows)
      : path_(std::move(path)), writer_(std::move(writer)), rows_(std::move(rows)) {}
  std::string path_;
  JsonlWriter writer_;
  Rows rows_;
};

}  // namespace taopd
