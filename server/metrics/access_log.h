// One line of JSON per answered request, for those who operate a server: when, who, what, with
// which result. Never a prompt, an answer or a key.
//
//   {"time":"2026-01-02T03:04:05.678Z","client":"10.0.0.7","request_id":"r-1",
//    "method":"grpc/Score","code":"OK","seconds":0.0123}
//
// Thread-safe. Writing never blocks a caller: a thread of the log writes the lines, and those that
// find its queue full are counted and lost.
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
  std::string request_id;  // the client's; empty if it has sent none
  std::string method;      // as in the metrics: "grpc/Score", "POST /v1/completions"
  std::string code;        // the name of a gRPC code, or an HTTP status
  absl::Duration latency;
};

// The line for a record, without its end. Bytes that are not UTF-8 are replaced.
std::string AccessLine(const AccessRecord& record);

class AccessLog {
 public:
  // Appends to the file, or writes to the standard output if `path` is "-". Returns
  // INVALID_ARGUMENT naming the path if it cannot be opened.
  static absl::StatusOr<std::unique_ptr<AccessLog>> Open(const std::string& path);
  // Writes what has been logged.
  ~AccessLog();

  void Write(const AccessRecord& record);
  // Opens the file again, after a program that rotates logs has renamed it. If that fails, lines go
  // on to the old file.
  absl::Status Reopen();
  // Lines that found the queue full.
  uint64_t num_lost() const;

 private:
  explicit AccessLog(const std::string& path);
  absl::StatusOr<std::shared_ptr<spdlog::logger>> MakeLogger() const;

  const std::string path_;
  const std::shared_ptr<spdlog::details::thread_pool> thread_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<spdlog::logger> logger_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
