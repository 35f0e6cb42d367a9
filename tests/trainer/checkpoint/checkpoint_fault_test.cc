// Tests of saves in which the process dies, or a system call fails, at any point.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "common/base/random.h"
#include "common/io/file.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/checkpoint/example_checkpoint.h"
#include "tests/trainer/checkpoint/failing_system.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/checkpoint/manifest.h"

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

int NumCallsOfASave() {
  TempDir temp;
  Prepare(temp.path());
  auto store = CheckpointStore::Open(temp.path(), {});
  ArmFault(Fault::kNone, -1);
  EXPECT_OK(Save(store->get(), 3));
  const int num_calls = NumSystemCalls();
  ArmFault(Fault::kNone, -2);
  return num_calls;
}

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

// The child reports each step that it has saved and is killed at a random moment.
TEST(CheckpointFaultTest, KilledAtRandomMoments) {
  TempDir temp;
  RandomStream random(11);
  int64_t next_step = 1;
  for (int round = 0; round < 12; ++round) {
    int saved_pipe[2];
    ASSERT_EQ(pipe(saved_pipe), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      auto store = CheckpointStore::Open(temp.path(), {.keep_last = 2, .keep_every = 50});
      for (int64_t step = next_step;; ++step) {
        if (!Save(store->get(), step).ok()) _exit(1);
        if (write(saved_pipe[1], &step, sizeof(step)) != sizeof(step)) _exit(1);
      }
    }
    close(saved_pipe[1]);
    int64_t saved = 0;
    ASSERT_EQ(read(saved_pipe[0], &saved, sizeof(saved)), static_cast<ssize_t>(sizeof(saved)));
    // Only the moment is random; nothing below depends on the duration.
    usleep(static_cast<useconds_t>(random.NextBelow(20000)));
    kill(pid, SIGKILL);
    int status = 0;
    waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself, code " << WEXITSTATUS(status);
    for (int64_t step; read(saved_pipe[0], &step, sizeof(step)) == sizeof(step);) saved = step;
    close(saved_pipe[0]);
    // The newest is the last step that the child reported, or the next one if it was complete.
    const int64_t newest = NewestStep(temp.path(), Concat("round ", round));
    EXPECT_TRUE(newest == saved || newest == saved + 1) << saved << " against " << newest;
    next_step = newest + 1;
  }
}

TEST(CheckpointFaultTest, FileThatCannotGrowLeavesTheOlder) {
  TempDir temp;
  Prepare(temp.path());
  const int result = InChild([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{10000, 10000};  // below the size of a file of the checkpoint
    setrlimit(RLIMIT_FSIZE, &limit);
    auto store = CheckpointStore::Open(temp.path(), {});
    if (!store.ok()) return 2;
    const auto saved = Save(store->get(), 3);
    if (saved.ok()) return 3;
    const auto newest = (*store)->Newest();
    return newest.ok() && (*newest)->step == 2 ? 0 : 4;
  });
  EXPECT_EQ(result, 0);
  EXPECT_EQ(NewestStep(temp.path(), "afterwards"), 2);
}

}  // namespace
}  // namespace taopd::testing
