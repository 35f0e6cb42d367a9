#include "common/engine/parallel/worker_processes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// WorkerProcesses starts this program again. The new process does what its first message says, and
// otherwise answers with it.
[[maybe_unused]] const bool is_worker = [] {
  const char* const fd = std::getenv(kWorkerFdVariable);
  if (fd == nullptr) return false;
  CommandChannel channel(std::atoi(fd));
  const auto message = channel.Receive();
  if (!message.ok() || !*message || **message == "die") ::_exit(7);
  if (**message != "be silent" && !channel.Send(**message).ok()) ::_exit(8);
  (void)channel.Receive();  // until rank 0 closes it
  ::_exit(0);
}();

TEST(WorkerProcesses, AreReadyWhenAllHaveSaidSo) {
  ASSERT_OK_AND_ASSIGN(const auto workers, WorkerProcesses::Start(3));
  ASSERT_OK(workers->SendToAll(""));
  EXPECT_OK(workers->AwaitReady(absl::Minutes(1)));
  EXPECT_OK(workers->Health());
}

TEST(WorkerProcesses, TheReasonOfARankThatCannotJoinIsPassedOn) {
  ASSERT_OK_AND_ASSIGN(const auto workers, WorkerProcesses::Start(3));
  ASSERT_OK(workers->Send(1, ""));
  ASSERT_OK(workers->Send(2, "device \"cuda:2\" does not exist"));
  EXPECT_ERROR(workers->AwaitReady(absl::Minutes(1)), kFailedPrecondition,
               "rank 2: device \"cuda:2\" does not exist");
}

TEST(WorkerProcesses, ARankThatEndsIsNotWaitedFor) {
  ASSERT_OK_AND_ASSIGN(const auto workers, WorkerProcesses::Start(2));
  ASSERT_OK(workers->Send(1, "die"));
  EXPECT_ERROR(workers->AwaitReady(absl::Hours(24)), kUnavailable, "ended with exit code 7");
}

TEST(WorkerProcesses, ARankThatSaysNothingIsWaitedForUntilTheLimit) {
  ASSERT_OK_AND_ASSIGN(const auto workers, WorkerProcesses::Start(2));
  ASSERT_OK(workers->Send(1, "be silent"));
  EXPECT_ERROR(workers->AwaitReady(absl::Milliseconds(50)), kUnavailable,
               "rank 1 has not started within 50ms");
}

}  // namespace
}  // namespace taopd::testing
