// JSON and JSON Lines. Errors name the file and the line. Depth and number of values are limited
// and duplicate keys refused while a value is built (deep values overflow the stack when copied,
// and a value takes up to 50 times the bytes of its text).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"

namespace taopd {

inline constexpr int kMaxJsonDepth = 100;
inline constexpr int64_t kMaxJsonValues = 8'000'000;
inline constexpr int64_t kMaxJsonFileBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxJsonlLineBytes = int64_t{64} << 20;

// Parses one JSON text under those limits; INVALID_ARGUMENT otherwise. `source` names it in
// messages. Integers beyond 64 bits become floating-point numbers, so check is_number_integer().
absl::StatusOr<nlohmann::json> ParseJson(const std::string& text, const std::string& source);
// The same with the keys of objects in the text's order. Such objects are searched from their first
// key on, so their size is limited too.
inline constexpr size_t kMaxOrderedJsonKeys = 10'000;
absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(const std::string& text,
                                                        const std::string& source);
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path);

// Calls `row` for each non-empty line, with its 1-based number. Stops at the first error.
absl::Status ReadJsonl(
    const std::string& path,
    const std::function<absl::Status(const nlohmann::json& value, int64_t line)>& row);
absl::Status ReadOrderedJsonl(
    const std::string& path,
    const std::function<absl::Status(const nlohmann::ordered_json& value, int64_t line)>& row);

// Appends lines to a file; each line is written whole and flushed to the kernel. Invalid UTF-8 in a
// string is written as U+FFFD, a number that is not finite as null. One thread, one writer a file.
class JsonlWriter {
 public:
  // `truncate_to_bytes` >= 0 first cuts the file there (resuming a run at a checkpoint).
  static absl::StatusOr<JsonlWriter> Open(const std::string& path, int64_t truncate_to_bytes = -1);
  JsonlWriter(JsonlWriter&& other) noexcept;
  JsonlWriter& operator=(JsonlWriter&& other) noexcept;
  ~JsonlWriter();
  absl::Status Write(const nlohmann::ordered_json& value);
  absl::StatusOr<int64_t> SizeBytes() const;

 private:
  JsonlWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

}  // namespace taopd
