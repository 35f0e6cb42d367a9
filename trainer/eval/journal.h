// The journal of an evaluation: a JSON Lines file with every response. An evaluation that is
// restarted continues from it. The first line is {"evaluation": {...}} with the configuration; each
// further line is a response.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/io/jsonl.h"

namespace taopd {

// Not thread-safe.
class EvalJournal {
 public:
  // Responses by (problem, sample).
  using Rows = std::map<std::pair<int64_t, int64_t>, nlohmann::ordered_json>;

  // Opens or creates the file. Removes an incomplete last line, which a killed process may have
  // left. Returns FAILED_PRECONDITION if the file holds another evaluation (the message names the
  // first setting that differs, with both values) or anything else, unless `overwrite` is set. A
  // new evaluation replaces the old content when its first response is added, so that an evaluation
  // without a response destroys nothing.
  static absl::StatusOr<EvalJournal> Open(const std::string& path,
                                          const nlohmann::ordered_json& evaluation, bool overwrite);

  // Returns the responses that the file held when it was opened.
  const Rows& rows() const { return rows_; }
  // Appends a response. REQUIRES: `row` holds the numbers "problem" and "sample".
  absl::Status Add(const nlohmann::ordered_json& row);
  // Returns the number of responses that this object has appended.
  int64_t num_added() const { return num_added_; }
  const std::string& path() const { return path_; }

 private:
  EvalJournal(std::string path, nlohmann::ordered_json evaluation)
      : path_(std::move(path)), evaluation_(std::move(evaluation)) {}

  std::string path_;
  nlohmann::ordered_json evaluation_;
  std::optional<JsonlWriter> writer_;  // empty until a new evaluation has its first response
  Rows rows_;
  int64_t num_added_ = 0;
};

}  // namespace taopd
