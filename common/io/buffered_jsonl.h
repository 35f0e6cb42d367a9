// A JSON Lines file whose disk may be full: lines that cannot be written stay in memory, in order,
// until a later call can write them. A line that exceeds the memory for waiting lines is dropped
// and counted.
//
// Not thread-safe; a file must have one writer at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "common/io/jsonl.h"

namespace taopd {

class BufferedJsonlWriter {
 public:
  // The largest number of bytes of lines that wait in memory.
  static constexpr int64_t kMaxWaitingBytes = int64_t{64} << 20;

  // Opens the file as JsonlWriter::Open does.
  static absl::StatusOr<BufferedJsonlWriter> Open(const std::string& path,
                                                  int64_t truncate_to_bytes = -1,
                                                  int64_t max_waiting_bytes = kMaxWaitingBytes);

  // Writes the waiting lines and this one, or keeps it. Logs when the first line has to wait, when
  // all lines are written again, and when the first line is dropped.
  void Write(const nlohmann::ordered_json& value);
  // Writes the waiting lines. Returns the error that keeps them waiting.
  absl::Status Flush();
  // Makes everything in the file durable (fsync), after Flush.
  absl::Status Sync();

  // The size of the file as a reader finds it.
  absl::StatusOr<int64_t> SizeBytes() const { return writer_.SizeBytes(); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_dropped() const { return num_dropped_; }

 private:
  BufferedJsonlWriter(JsonlWriter writer, std::string path, int64_t max_waiting_bytes)
      : writer_(std::move(writer)), path_(std::move(path)), max_waiting_bytes_(max_waiting_bytes) {}

  JsonlWriter writer_;
  std::string path_;
  int64_t max_waiting_bytes_;
  std::deque<std::string> waiting_;
  int64_t waiting_bytes_ = 0;
  int64_t num_dropped_ = 0;
};

}  // namespace taopd
