// Tests of two processes in one run directory.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "trainer/run/run_lock.h"

namespace taopd::testing {
namespace {

// A child that holds the lock until it is killed.
class Holder {
 public:
  explicit Holder(const std::string& run_dir) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const auto lock = RunLock::Acquire(run_dir);
      const char byte = lock.ok() ? 'y' : 'n';
      if (write(ready[1], &byte, 1) != 1) _exit(2);
      pause();
      _exit(0);
    }
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    EXPECT_EQ(byte, 'y');
    close(ready[0]);
    close(ready[1]);
  }
  ~Holder() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

TEST(RunLockTest, SecondProcessIsRefusedAndToldWhoHoldsIt) {
  TempDir temp;
  const std::string run_dir = temp.File("run");
  Holder holder(run_dir);
  const auto refused = RunLock::Acquire(run_dir);
  EXPECT_ERROR(refused, kFailedPrecondition, Concat("in use by process ", holder.pid(), " on "));
  EXPECT_ERROR(refused, kFailedPrecondition, run_dir);
  // The lock of a process ends with it, however it ends.
  holder.Kill();
  EXPECT_OK(RunLock::Acquire(run_dir));
}

TEST(RunLockTest, EndsWithTheObject) {
  TempDir temp;
  ASSERT_OK_AND_ASSIGN(auto lock, RunLock::Acquire(temp.path()));
  EXPECT_ERROR(RunLock::Acquire(temp.path()), kFailedPrecondition, Concat("process ", getpid()));
  lock.reset();
  EXPECT_OK(RunLock::Acquire(temp.path()));
}

TEST(RunLockTest, OtherDirectoriesAreFree) {
  TempDir temp;
  const auto a = RunLock::Acquire(temp.File("a"));
  const auto b = RunLock::Acquire(temp.File("b"));
  EXPECT_OK(a);
  EXPECT_OK(b);
}

}  // namespace
}  // namespace taopd::testing
