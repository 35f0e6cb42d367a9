// Typed access to the fields of a JSON object. A field of a wrong type becomes the error of this
// object, unless there is one already, and reads as absent; the caller asks for the error once, at
// the end. Values are converted as vLLM converts them: "5", 5.0 and 5 are integers, "true", 1 and
// true are booleans. Not thread-safe.
//
// The object remembers which fields were asked for: the others are the ones that nobody knows.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

class JsonFields {
 public:
  // `prefix` stands in front of the names in messages: "sampling_params.".
  explicit JsonFields(const nlohmann::json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  const absl::Status& error() const { return error_; }
  void Fail(const absl::Status& error) { error_.Update(error); }

  // The value; null if it is absent or JSON's null. The object must outlive it.
  const nlohmann::json* Find(const std::string& name);
  std::optional<bool> Bool(const std::string& name);
  // A value outside [low, high] is an error, and so is a whole number that 64 bits do not hold.
  std::optional<int64_t> Integer(const std::string& name,
                                 int64_t low = std::numeric_limits<int64_t>::min(),
                                 int64_t high = std::numeric_limits<int64_t>::max());
  // Does the same for a field that is cut to a limit, such as max_tokens: a whole number that 64
  // bits do not hold is read as the nearest one that they do.
  std::optional<int64_t> ClampedInteger(const std::string& name);
  std::optional<double> Number(const std::string& name);
  std::optional<std::string> Text(const std::string& name);
  // Numbers as AsClampedInteger reads them: the caller checks their range.
  std::vector<int64_t> Integers(const std::string& name);
  std::vector<std::string> Texts(const std::string& name);

  // The names that were asked for so far.
  const std::set<std::string>& asked() const { return asked_; }
  // Logs the fields that were not asked for: each once in the life of the process, and the first
  // 100 different ones only.
  void LogUnknown(const std::string& path) const;

 private:
  const nlohmann::json& object_;
  const std::string prefix_;
  std::set<std::string> asked_;
  absl::Status error_;
};

// The value as an integer, if it is a number without a fraction; the nearest one where 64 bits do
// not hold it. For ids and counts, whose range is checked next. JSON texts are parsed with integers
// beyond 2^64 as floating point numbers.
std::optional<int64_t> AsClampedInteger(const nlohmann::json& value);

}  // namespace taopd
