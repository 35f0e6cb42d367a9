#include "tests/support/process.h"

#include <gtest/gtest-spi.h>

#include <cerrno>

#include "tests/support/status_matchers.h"

namespace {
int num_signals = 0;
}  // namespace

// Replace the C library's functions in this program: it can start no process, and signals none.
extern "C" pid_t fork() noexcept {
  errno = EAGAIN;
  return -1;
}
extern "C" int kill(pid_t, int) noexcept {
  ++num_signals;
  return 0;
}

namespace taopd::testing {
namespace {

TEST(Process, ThatWasNotStartedFailsTheTest) {
  const TempDir dir;
  int code = 0;
  ::testing::TestPartResultArray failures;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    Process process({"/bin/true"}, dir.File("output"));
    process.Signal(SIGKILL);
    code = process.Wait();
  }
  ASSERT_EQ(failures.size(), 1);
  EXPECT_THAT(failures.GetTestPartResult(0).message(), HasSubstr("cannot start /bin/true"));
  EXPECT_EQ(code, -1);
  EXPECT_EQ(num_signals, 0);
}

}  // namespace
}  // namespace taopd::testing
