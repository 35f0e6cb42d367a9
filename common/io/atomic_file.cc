#include "common/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <system_error>

#include "common/io/file.h"

namespace taopd {

absl::Status FileError(const std::string& action, const std::string& path, int error_number) {
  const std::string message =
      Concat("cannot ", action, " ", path, ": ", std::generic_category().message(error_number));
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::Status WriteAll(int fd, std::span<const std::byte> bytes, const std::string& path) {
  // Linux writes at most 0x7ffff000 bytes per call.
  constexpr size_t kMaxWriteBytes = size_t{1} << 30;
  while (!bytes.empty()) {
    const ssize_t num_written = ::write(fd, bytes.data(), std::min(bytes.size(), kMaxWriteBytes));
    if (num_written < 0) {
      if (errno == EINTR) continue;
      return FileError("write", path, errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(num_written));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path) {
  // Several hosts may share the file system, so the process id alone is not unique. mkstemp is not
  // used because its mode 0600 would survive the rename.
  static std::atomic<uint64_t> next_number{0};
  constexpr int kMaxAttempts = 16;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const std::string temporary_path =
        Concat(path, ".tmp-", ::getpid(), "-", next_number++, "-", std::random_device{}());
    FileDescriptor fd(
        ::open(temporary_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd.get() >= 0) {
      return std::unique_ptr<AtomicFile>(new AtomicFile(std::move(fd), path, temporary_path));
    }
    if (errno != EEXIST) return FileError("create", temporary_path, errno);
  }
  return absl::AlreadyExistsError(Concat("no free temporary name for ", path));
}

AtomicFile::~AtomicFile() {
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

absl::Status AtomicFile::Write(std::span<const std::byte> bytes) {
  return WriteAll(fd_.get(), bytes, temporary_path_);
}

absl::Status AtomicFile::Commit() {
  if (::fsync(fd_.get()) != 0) return FileError("fsync", temporary_path_, errno);
  if (fd_.Close() != 0) return FileError("close", temporary_path_, errno);
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    return FileError("rename a finished file to", path_, errno);
  }
  temporary_path_.clear();
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

}  // namespace taopd
