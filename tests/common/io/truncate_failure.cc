#include "tests/common/io/truncate_failure.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace taopd::testing {
namespace {

std::atomic<bool> fails = false;

}  // namespace

TruncateFailure::TruncateFailure() { fails = true; }
TruncateFailure::~TruncateFailure() { fails = false; }

}  // namespace taopd::testing

// Takes the place of the C library's function.
extern "C" int ftruncate(int fd, off_t length) noexcept {
  if (!taopd::testing::fails) return static_cast<int>(syscall(SYS_ftruncate, fd, length));
  errno = EIO;
  return -1;
}
