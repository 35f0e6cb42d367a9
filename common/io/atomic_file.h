// A file that appears under its name only when it is complete. The bytes go to a temporary name in
// the same directory; Commit makes them durable and renames the file. If an AtomicFile is destroyed
// without Commit, nothing is left on the disk. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace taopd {

class AtomicFile {
 public:
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  absl::Status Write(std::span<const std::byte> bytes);
  absl::Status Write(std::string_view text) { return Write(std::as_bytes(std::span(text))); }
  // Calls fsync, renames the file to its final name and syncs the directory. After an error the
  // file may be there under that name, complete but perhaps not durable. No other call may follow.
  absl::Status Commit();

 private:
  AtomicFile(FileDescriptor fd, std::string path, std::string temporary_path)
      : fd_(std::move(fd)), path_(std::move(path)), temporary_path_(std::move(temporary_path)) {}

  FileDescriptor fd_;
  std::string path_;
  std::string temporary_path_;
};

// Returns the status of a failed system call: "cannot <action> <path>: <errno in words>". The code
// is NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (a directory, a loop of links, a long name),
// RESOURCE_EXHAUSTED (no space or quota left) or otherwise UNAVAILABLE. The message already names
// the path, so callers must not annotate it with the path again.
absl::Status FileError(const std::string& action, const std::string& path, int error_number);

// Calls write(2) until everything is written. `path` names the file in messages.
absl::Status WriteAll(int fd, std::span<const std::byte> bytes, const std::string& path);

}  // namespace taopd
