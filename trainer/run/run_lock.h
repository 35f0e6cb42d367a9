// Ensures one writer per run directory, across processes and hosts that share the file system.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace taopd {

// Holds an flock on RUN_DIR/run.lock as long as the object lives. The kernel releases the lock when
// the process ends, however it ends. The file itself stays.
class RunLock {
 public:
  // Creates the directory. Returns FAILED_PRECONDITION if another process, or another object of
  // this one, holds the lock; the message names the holder's process id and host.
  static absl::StatusOr<std::unique_ptr<RunLock>> Acquire(const std::string& run_dir);
  // Returns the error that Acquire would return, but makes nothing. The lock is not held when it
  // returns.
  static absl::Status CheckFree(const std::string& run_dir);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  explicit RunLock(FileDescriptor fd) : fd_(std::move(fd)) {}

  const FileDescriptor fd_;
};

}  // namespace taopd
