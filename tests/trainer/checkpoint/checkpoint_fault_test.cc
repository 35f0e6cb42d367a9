// Tests of saves in which the process dies, or a system call fails, at any point.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "common/io/file.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/checkpoint/example_checkpoint.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/checkpoint/manifest.h"

namespace taopd::testing {
namespace {

enum class Fault { kNone, kKillBefore, kKillAfter, kFail };

std::atomic<Fault> armed = Fault::kNone;
std::atomic<int> fault_index = -2, fault_error = 0, num_so_far = 0;
std::mutex calls_mutex;
std::vector<std::string> calls_so_far;

std::string PathOf(int fd) {
  std::error_code error;
  return std::filesystem::read_symlink(Concat("/proc/self/fd/", fd), error).string();
}

// `name` is the call's name with its paths, such as "fsync /tmp/x" and "rename FROM TO".
template <typename Call>
long Run(const std::string& name, Call call) {
  if (fault_index.load() < -1) return call();
  {
    const std::lock_guard lock(calls_mutex);
    calls_so_far.push_back(name);
  }
  const bool is_hit = num_so_far.fetch_add(1) == fault_index.load();
  if (is_hit && armed == Fault::kFail) {
    errno = fault_error;
    return -1;
  }
  if (is_hit && armed == Fault::kKillBefore) kill(getpid(), SIGKILL);
  const long result = call();
  if (is_hit && armed == Fault::kKillAfter) kill(getpid(), SIGKILL);
  return result;
}

// From now on counts the system calls; the fault happens at call number `index` (from 0). -1 only
// counts, and -2 ends the counting. kFail returns `error_number`.
void ArmFault(Fault fault, int index, int error_number = 0) {
  armed = fault;
  fault_error = error_number;
  num_so_far = 0;
  fault_index = index;
  const std::lock_guard lock(calls_mutex);
  calls_so_far.clear();
}
// Returns the names of the calls since ArmFault.
std::vector<std::string> SystemCalls() {
  const std::lock_guard lock(calls_mutex);
  return calls_so_far;
}

}  // namespace
}  // namespace taopd::testing

using taopd::Concat;
using taopd::testing::PathOf;
using taopd::testing::Run;

// These take the place of the C library's, in the whole program.
extern "C" {
// fsync is only counted. The kernel keeps what a killed process wrote, so waiting for the disk
// would test nothing here and take most of the time.
int fsync(int fd) {
  return static_cast<int>(Run(Concat("fsync ", PathOf(fd)), [] { return 0L; }));
}
int rename(const char* from, const char* to) {
  return static_cast<int>(
      Run(Concat("rename ", from, " ", to), [&] { return syscall(SYS_rename, from, to); }));
}
int mkdir(const char* path, mode_t mode) {
  return static_cast<int>(
      Run(Concat("mkdir ", path), [&] { return syscall(SYS_mkdir, path, mode); }));
}
ssize_t write(int fd, const void* bytes, size_t size) {
  if (fd <= 2) return syscall(SYS_write, fd, bytes, size);  // messages of the test itself
  return Run(Concat("write ", PathOf(fd)), [&] { return syscall(SYS_write, fd, bytes, size); });
}
ssize_t writev(int fd, const struct iovec* parts, int num_parts) {
  if (fd <= 2) return syscall(SYS_writev, fd, parts, num_parts);
  return Run(Concat("writev ", PathOf(fd)),
             [&] { return syscall(SYS_writev, fd, parts, num_parts); });
}
int unlinkat(int dir_fd, const char* path, int flags) {
  return static_cast<int>(
      Run(Concat("unlinkat ", path), [&] { return syscall(SYS_unlinkat, dir_fd, path, flags); }));
}
}

namespace taopd::testing {
namespace {

absl::StatusOr<std::string> Save(CheckpointStore* store, int64_t step) {
  return store->Save(step, [&](const std::string& to) { return WriteExample(to, step); });
}

// Runs `body` in a child process. Returns its exit code, or minus the signal that ended it.
int InChild(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Returns the step of the checkpoint that the next process finds, or -1 if there is none.
int64_t NewestStep(const std::string& dir, const std::string& where) {
  auto store = CheckpointStore::Open(dir, {});
  EXPECT_OK(store);
  const auto newest = (*store)->Newest();
  EXPECT_OK(newest);
  if (!newest.ok() || !newest->has_value()) return -1;
  const auto all = (*store)->List();
  EXPECT_OK(all);
  for (const CheckpointRef& ref : *all) {
    EXPECT_TRUE(VerifyCheckpoint(ref.path, ref.step, /*hashes=*/true).ok()) << where;
  }
  EXPECT_TRUE(IsExample((*newest)->path, (*newest)->step)) << where;
  const auto names = ListDirectory(dir);
  for (const std::string& name : *names) EXPECT_EQ(name.rfind("step-", 0), 0u) << where;
  return (*newest)->step;
}

// Makes a directory with steps 1 and 2, so that saving 3 also deletes one.
void Prepare(const std::string& dir) {
  auto store = CheckpointStore::Open(dir, {});
  ASSERT_OK(store);
  ASSERT_OK(Save(store->get(), 1));
  ASSERT_OK(Save(store->get(), 2));
}

// Returns the names of the system calls of a save of step 3.
std::vector<std::string> CallsOfASave(const std::string& dir) {
  Prepare(dir);
  auto store = CheckpointStore::Open(dir, {});
  EXPECT_OK(store);
  ArmFault(Fault::kNone, -1);
  EXPECT_OK(Save(store->get(), 3));
  const std::vector<std::string> calls = SystemCalls();
  ArmFault(Fault::kNone, -2);
  return calls;
}
int NumCallsOfASave() { return static_cast<int>(CallsOfASave(TempDir().path()).size()); }

TEST(CheckpointFaultTest, KilledAtEverySystemCallOfASave) {
  const int num_calls = NumCallsOfASave();
  ASSERT_GT(num_calls, 15);  // writes, fsyncs, renames and the deletion of step 1
  int num_new = 0, num_old = 0;
  for (const Fault fault : {Fault::kKillBefore, Fault::kKillAfter}) {
    for (int index = 0; index < num_calls; ++index) {
      const std::string where =
          Concat("call ", index, fault == Fault::kKillAfter ? " after" : " before");
      TempDir temp;
      Prepare(temp.path());
      const int result = InChild([&] {
        auto store = CheckpointStore::Open(temp.path(), {});
        ArmFault(fault, index);
        return Save(store->get(), 3).ok() ? 0 : 1;
      });
      ASSERT_EQ(result, -SIGKILL) << where;
      const int64_t step = NewestStep(temp.path(), where);
      EXPECT_TRUE(step == 2 || step == 3) << where << ": step " << step;
      (step == 3 ? num_new : num_old)++;
    }
  }
  EXPECT_GT(num_new, 0);
  EXPECT_GT(num_old, 0);
}

TEST(CheckpointFaultTest, EverySystemCallOfASaveFails) {
  const int num_calls = NumCallsOfASave();
  int num_failed_saves = 0;
  for (const int error_number : {ENOSPC, EIO}) {
    for (int index = 0; index < num_calls; ++index) {
      const std::string where = Concat("call ", index, " gives ", error_number);
      TempDir temp;
      Prepare(temp.path());
      auto store = CheckpointStore::Open(temp.path(), {});
      ASSERT_OK(store);
      ArmFault(Fault::kFail, index, error_number);
      const auto saved = Save(store->get(), 3);
      ArmFault(Fault::kNone, -2);
      num_failed_saves += !saved.ok();
      // A save that returns OK is complete; a failed one destroys nothing.
      const int64_t step = NewestStep(temp.path(), where);
      EXPECT_TRUE(step == 3 || (step == 2 && !saved.ok())) << where << ": step " << step;
      EXPECT_TRUE(Save(store->get(), 4).ok()) << where;
      EXPECT_EQ(NewestStep(temp.path(), where), 4) << where;
    }
  }
  EXPECT_GT(num_failed_saves, num_calls);  // of 2 * num_calls; failed deletions do not count
}

// A write outlives its process, but a machine that fails loses every write that was not synced. The
// test therefore compares the order of the calls.
TEST(CheckpointFaultTest, FilesAreSyncedBeforeTheyHaveTheirNameAndTheNameBeforeOthersGo) {
  TempDir temp;
  const std::vector<std::string> calls = CallsOfASave(temp.path());
  const std::string name = temp.File("step-000003");
  const auto renamed = std::ranges::find_if(
      calls, [&](const std::string& call) { return call.ends_with(" " + name); });
  ASSERT_NE(renamed, calls.end());
  const std::string unfinished = renamed->substr(7, renamed->size() - 7 - name.size() - 1);
  for (const char* part : {"/student/model.bin", "/optimizer.bin", "/state.json", "/student", ""}) {
    const std::string path = unfinished + part;
    const auto synced = std::find(calls.begin(), renamed, "fsync " + path);
    EXPECT_NE(synced, renamed) << path;
    EXPECT_EQ(std::find(synced, renamed, "write " + path), renamed) << path;
    EXPECT_EQ(std::find(synced, renamed, "writev " + path), renamed) << path;
  }
  const auto named = std::find(renamed, calls.end(), "fsync " + temp.path());
  EXPECT_NE(named, calls.end());
  const auto leaves = [&](const std::string& call) {  // for the trash, where it is deleted
    return call.starts_with("rename " + temp.File("step-000001"));
  };
  EXPECT_TRUE(std::none_of(renamed, named, leaves));
  EXPECT_TRUE(std::any_of(named, calls.end(), leaves));
}

}  // namespace
}  // namespace taopd::testing
