// Writes one line of JSON per answered request for operators: the time, the client, the method and
// the result, but never a prompt, an answer or a key.
//
//   {"time":"2026-01-02T03:04:05.678Z","client":"10.0.0.7","request_id":"r-1",
//    "method":"grpc/Score","code":"OK","seconds":0.0123}
//
// Thread-safe. Logging never blocks a caller: a thread of the log writes the lines. If its queue is
// full, the line that has waited longest is lost and counted.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"

namespace spdlog {
class logger;
namespace details {
class thread_pool;
}
}  // namespace spdlog

namespace taopd {

struct AccessRecord {
  absl::Time at;
  std::string client;      // the address; empty if it is unknown
  std::string request_id;  // the client's id; empty if it has sent none
  std::string method;      // the method of the metrics: "grpc/Score", "POST /v1/completions"
  std::string code;        // the name of a gRPC code, or an HTTP status
  absl::Duration latency;
};

// Returns the line for a record, without a line break. Bytes that are not UTF-8 are replaced.
std::string AccessLine(const AccessRecord& record);

class AccessLog {
 public:
  // Opens a log that appends to the file, or writes to standard output if `path` is "-". Returns
  // INVALID_ARGUMENT naming the path if it cannot be opened.
  static absl::StatusOr<std::unique_ptr<AccessLog>> Open(const std::string& path);
  // Writes the remaining lines.
  ~AccessLog();

  void Write(const AccessRecord& record);
  // Opens the file again, after log rotation has renamed it. If that fails, lines still go to the
  // old file.
  absl::Status Reopen();
  // Returns the number of lines that were lost.
  uint64_t num_lost() const;

 private:
  explicit AccessLog(const std::string& path);

  const std::string path_;
  const std::shared_ptr<spdlog::details::thread_pool> thread_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<spdlog::logger> logger_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
