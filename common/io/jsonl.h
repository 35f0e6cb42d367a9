// JSON and JSON Lines. Errors name the file and the line.
//
// A value's depth and number of parts are limited while it is built, because deep values overflow
// the stack when they are copied, and because a value takes up to 50 times the bytes of its text.
// Duplicate keys are refused.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace taopd {

inline constexpr int kMaxJsonDepth = 100;
inline constexpr int64_t kMaxJsonValues = 8'000'000;
inline constexpr int64_t kMaxJsonFileBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxJsonlLineBytes = int64_t{64} << 20;
// Look-ups in an ordered object search from its first key, so its size is limited too.
inline constexpr size_t kMaxOrderedJsonKeys = 10'000;

// Parses one JSON text. Returns INVALID_ARGUMENT if it is malformed or exceeds a limit. `source`
// names the text in messages. Integers beyond 64 bits become floating-point numbers, so callers
// must check is_number_integer(). `max_value_bytes` approximately limits the memory of the value;
// `max_values` is for texts whose size the caller limits.
absl::StatusOr<nlohmann::json> ParseJson(const std::string& text, const std::string& source,
                                         int64_t max_value_bytes = INT64_MAX,
                                         int64_t max_values = kMaxJsonValues);
// Parses like ParseJson, but keeps the keys of objects in the order of the text.
absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(const std::string& text,
                                                        const std::string& source,
                                                        int64_t max_value_bytes = INT64_MAX);
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path);
// Returns the value as a text without white space. Bytes that are not UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& value);

// Calls `row` for each line that is not blank, with the line's 1-based number. Stops at the first
// error.
absl::Status ReadJsonl(
    const std::string& path,
    const std::function<absl::Status(const nlohmann::json& value, int64_t line)>& row);
absl::Status ReadOrderedJsonl(
    const std::string& path,
    const std::function<absl::Status(const nlohmann::ordered_json& value, int64_t line)>& row);

// Appends lines to a file. Each line is handed to the kernel whole. Bytes of a string that are not
// UTF-8 are written as U+FFFD, and numbers that are not finite as null. Not thread-safe; a file
// must have one writer at a time.
class JsonlWriter {
 public:
  // If truncate_to_bytes >= 0, the file is first cut to that size, to resume a run at a checkpoint.
  // Returns DATA_LOSS if the file is shorter.
  static absl::StatusOr<JsonlWriter> Open(const std::string& path, int64_t truncate_to_bytes = -1);
  absl::Status Write(const nlohmann::ordered_json& value) { return WriteLine(LineOf(value)); }
  // Write calls LineOf, which returns the line of a value, and WriteLine, which appends it.
  static std::string LineOf(const nlohmann::ordered_json& value) { return JsonText(value) + "\n"; }
  // After a failure that has left half a line in the file, the next call removes it first, and
  // returns the error of that failure if it cannot.
  absl::Status WriteLine(const std::string& line);
  // Makes all lines so far durable (fsync).
  absl::Status Sync();
  // Returns the size of the whole lines, without half a line that a failure has left.
  absl::StatusOr<int64_t> SizeBytes() const;

 private:
  JsonlWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  // Cuts off half a line that a failure has left.
  absl::Status RemoveHalfLine();

  FileDescriptor fd_;
  std::string path_;
  absl::Status half_line_;   // the error that has left half a line
  int64_t whole_bytes_ = 0;  // size of the lines before it
};

}  // namespace taopd
