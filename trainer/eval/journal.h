// The journal of an evaluation: a JSON Lines file with every response. People can read it, and an
// evaluation that is started again continues from it. The first line is {"evaluation": {...}} with
// the configuration. Each further line is a response.
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

  // Opens the file or creates it. Cuts off half a line at its end, which a killed process may have
  // left. If `overwrite` is set, the file may hold anything. Otherwise returns FAILED_PRECONDITION
  // if the file holds another evaluation (the message names the first setting that differs, with
  // both values) or anything else. A new evaluation replaces what the file holds when its first
  // response is added: one that never gets a response costs nothing.
  static absl::StatusOr<EvalJournal> Open(const std::string& path,
                                          const nlohmann::ordered_json& evaluation, bool overwrite);

  // The responses that were in the file when it was opened.
  const Rows& rows() const { return rows_; }
  // Appends a response. REQUIRES: `row` holds the numbers "problem" and "sample".
  absl::Status Add(const nlohmann::ordered_json& row);
  // The responses that this object has appended.
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
