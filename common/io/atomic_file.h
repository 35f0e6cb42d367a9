// A file that appears under its name only when it is complete: bytes go to a temporary name in the
// same directory; Commit makes them durable and renames. Destroyed without Commit, nothing is left.
// One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

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
  // fsync, rename over the final name, fsync of the directory.
  absl::Status Commit();

 private:
  AtomicFile(int fd, std::string path, std::string temporary_path)
      : fd_(fd), path_(std::move(path)), temporary_path_(std::move(temporary_path)) {}

  int fd_;
  std::string path_;
  std::string temporary_path_;
};

// Status of a failed system call on a path, with errno in words: NOT_FOUND, PERMISSION_DENIED,
// RESOURCE_EXHAUSTED (no space, quota), else UNAVAILABLE.
absl::Status FileError(const std::string& action, const std::string& path, int error_number);

// write(2) until everything is written.
absl::Status WriteAll(int fd, std::span<const std::byte> bytes, const std::string& path);

}  // namespace taopd
