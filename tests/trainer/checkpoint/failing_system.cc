#include "tests/trainer/checkpoint/failing_system.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace taopd::testing {
namespace {

std::atomic<Fault> armed = Fault::kNone;
std::atomic<int> fault_index = -1, fault_error = 0, num_calls = 0;

template <typename Call>
long Run(Call call) {
  if (fault_index.load() < -1) return call();
  const bool is_hit = num_calls.fetch_add(1) == fault_index.load();
  if (is_hit && armed == Fault::kFail) {
    errno = fault_error;
    return -1;
  }
  if (is_hit && armed == Fault::kKillBefore) kill(getpid(), SIGKILL);
  const long result = call();
  if (is_hit && armed == Fault::kKillAfter) kill(getpid(), SIGKILL);
  return result;
}

}  // namespace

void ArmFault(Fault fault, int index, int error_number) {
  armed = fault;
  fault_error = error_number;
  num_calls = 0;
  fault_index = index;
}

int NumSystemCalls() { return num_calls; }

}  // namespace taopd::testing

using taopd::testing::Run;

extern "C" {
// fsync is only counted. The kernel keeps what a killed process wrote, so waiting for the disk
// would test nothing here and take most of the time.
int fsync(int fd) {
  return static_cast<int>(Run([] { return 0L; }));
}
int rename(const char* from, const char* to) {
  return static_cast<int>(Run([&] { return syscall(SYS_rename, from, to); }));
}
int mkdir(const char* path, mode_t mode) {
  return static_cast<int>(Run([&] { return syscall(SYS_mkdir, path, mode); }));
}
ssize_t write(int fd, const void* bytes, size_t size) {
  if (fd <= 2) return syscall(SYS_write, fd, bytes, size);  // messages of the test itself
  return Run([&] { return syscall(SYS_write, fd, bytes, size); });
}
ssize_t writev(int fd, const struct iovec* parts, int num_parts) {
  if (fd <= 2) return syscall(SYS_writev, fd, parts, num_parts);
  return Run([&] { return syscall(SYS_writev, fd, parts, num_parts); });
}
int unlinkat(int dir_fd, const char* path, int flags) {
  return static_cast<int>(Run([&] { return syscall(SYS_unlinkat, dir_fd, path, flags); }));
}
}
