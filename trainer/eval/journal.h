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

  // Opens the file, or a new one. Returns FAILED_PRECONDITION if it holds another evaluation (the
  // message names the first setting that differs, with both values) or anything else; with
  // `overwrite` it may hold anything. Half a line at the end, left by a process that was killed, is
  // cut off. A new evaluation replaces what the file holds when its first response is added: one
  // that never gets a response costs nothing.
  static absl::StatusOr<EvalJournal> Open(const std::string& path,
                                          const nlohmann::ordered_json& evaluation, bool overwrite);

  // Responses that were there at Open.
  const Rows& rows() const { return rows_; }
  // `row` holds the numbers "problem" and "sample".
  absl::Status Add(const nlohmann::ordered_json& row);
  const std::string& path() const { return path_; }

 private:
  EvalJournal(std::string path, nlohmann::ordered_json evaluation)
      : path_(std::move(path)), evaluation_(std::move(evaluation)) {}

  std::string path_;
  nlohmann::ordered_json evaluation_;
  std::optional<JsonlWriter> writer_;  // empty until a new evaluation has its first response
  Rows rows_;
};

}  // namespace taopd
