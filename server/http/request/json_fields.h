// Typed access to the fields of a JSON object. A field of a wrong type reads as absent, and the
// first such field becomes the error of this object; the caller asks for the error when it has read
// its fields. Values are converted as vLLM converts them: "5", 5.0 and 5 are integers, "true", 1
// and true are booleans. Not thread-safe.
//
// The object remembers which fields were asked for: the others are unknown fields. Keys keep the
// order of the body, which is that of schemas and of chat templates.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/io/jsonl.h"

namespace taopd {

class JsonFields {
 public:
  // `prefix` precedes the names in messages: "sampling_params.".
  explicit JsonFields(nlohmann::ordered_json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  const absl::Status& error() const { return error_; }
  void Fail(const absl::Status& error) { error_.Update(error); }

  // Returns the value, or null if it is absent or JSON's null. The object must outlive it.
  const nlohmann::ordered_json* Find(const std::string& name) { return FindMutable(name); }
  // Moves the value out, and leaves null in its place. Returns null if it is absent.
  nlohmann::ordered_json Take(const std::string& name);
  // Returns the fields of the value, which must be an object; none if it is absent. Their errors
  // are not errors of this object. The result lives as long as this object.
  JsonFields& Nested(const std::string& name);
  std::optional<bool> Bool(const std::string& name);
  // A whole number that 64 bits do not hold is an error.
  std::optional<int64_t> Integer(const std::string& name);
  // Does the same for a field that is cut to a limit, such as max_tokens: a whole number that 64
  // bits do not hold is read as the nearest one that they do.
  std::optional<int64_t> ClampedInteger(const std::string& name);
  std::optional<double> Number(const std::string& name);
  std::optional<std::string> Text(const std::string& name);
  // Reads numbers as AsClampedInteger does: the caller checks their range.
  std::vector<int64_t> Integers(const std::string& name);
  std::vector<std::string> Texts(const std::string& name);

  // Returns the names that were asked for so far.
  const std::set<std::string>& asked() const { return asked_; }
  // Logs the fields that were not asked for, and those of nested objects: each once in the life of
  // the process, and the first 100 different ones only.
  void LogUnknown(const std::string& path) const;

 private:
  nlohmann::ordered_json* FindMutable(const std::string& name);
  // Reads the parts of a list. The error of a part that `convert` cannot read says what is
  // `expected`.
  template <typename Item>
  std::vector<Item> List(const std::string& name, const char* expected,
                         std::optional<Item> (*convert)(const nlohmann::ordered_json&));

  nlohmann::ordered_json& object_;
  const std::string prefix_;
  std::set<std::string> asked_;
  std::map<std::string, std::unique_ptr<JsonFields>> nested_;
  absl::Status error_;
};

// Returns the value as an integer if it is a number without a fraction, or the nearest integer if
// 64 bits do not hold it. Use it for ids and counts, whose range is checked next. The JSON parser
// reads integers beyond 2^64 as floating point numbers.
std::optional<int64_t> AsClampedInteger(const nlohmann::ordered_json& value);

}  // namespace taopd
