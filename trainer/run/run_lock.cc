#include "trainer/run/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/io/file.h"

namespace taopd {
namespace {

// Locks the open file run.lock of `run_dir`.
absl::Status Lock(int fd, const std::string& run_dir) {
  int result;
  do {
    result = flock(fd, LOCK_EX | LOCK_NB);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return absl::OkStatus();
  const int error = errno;
  const std::string path = run_dir + "/run.lock";
  if (error != EWOULDBLOCK) {
    return FailedPrecondition("cannot lock ", path, ": ", std::strerror(error));
  }
  char holder[300] = {};
  const ssize_t size = pread(fd, holder, sizeof(holder) - 1, 0);
  return FailedPrecondition("run directory ", run_dir, " is in use by process ",
                            size > 0 ? std::string(holder, size) : std::string("(unknown)"),
                            ": it holds ", path);
}

}  // namespace

// The file stays, because after a removal two processes could each hold a lock on a file of that
// name.
RunLock::~RunLock() {
  // After a failure a stale process id stays in the file, but the lock is what counts.
  [[maybe_unused]] const int ignored = ftruncate(fd_.get(), 0);
}

absl::Status RunLock::CheckFree(const std::string& run_dir) {
  namespace fs = std::filesystem;
  const std::string path = run_dir + "/run.lock";
  const FileDescriptor fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() >= 0) return Lock(fd.get(), run_dir);
  if (errno != ENOENT) return FailedPrecondition("cannot open ", path, ": ", std::strerror(errno));
  // Acquire makes the file, and the directories that are missing.
  std::error_code error;
  fs::path ancestor = fs::absolute(run_dir, error);
  while (ancestor.has_relative_path() && !fs::exists(ancestor, error))
    ancestor = ancestor.parent_path();
  if (!fs::is_directory(ancestor, error))
    return FailedPrecondition("cannot create ", run_dir, ": ", ancestor.string(),
                              " is not a directory");
  if (access(ancestor.c_str(), W_OK | X_OK) != 0) {
    return FailedPrecondition("cannot create ", path, ": ", ancestor.string(), ": ",
                              std::strerror(errno));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RunLock>> RunLock::Acquire(const std::string& run_dir) {
  TAOPD_RETURN_IF_ERROR(MakeDirectories(run_dir));
  const std::string path = run_dir + "/run.lock";
  FileDescriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (fd.get() < 0) return FailedPrecondition("cannot open ", path, ": ", std::strerror(errno));
  TAOPD_RETURN_IF_ERROR(Lock(fd.get(), run_dir));
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, sizeof(host) - 1);
  // Only the message of Lock uses this text.
  const std::string holder = Concat(getpid(), " on ", host);
  if (ftruncate(fd.get(), 0) != 0 ||
      pwrite(fd.get(), holder.data(), holder.size(), 0) != static_cast<ssize_t>(holder.size())) {
    return FailedPrecondition("cannot write ", path, ": ", std::strerror(errno));
  }
  return std::unique_ptr<RunLock>(new RunLock(std::move(fd)));
}

}  // namespace taopd
