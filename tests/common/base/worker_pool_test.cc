#include "common/base/worker_pool.h"
#include "tests/support/status_matchers.h"

#include <absl/synchronization/notification.h>

#include <algorithm>
#include <set>
#include <thread>
#include <vector>

namespace taopd::testing {
namespace {

TEST(WorkerPoolTest, OneThreadRunsAllTasksInTheirOrder) {
  std::vector<int> order;
  const std::thread::id here = std::this_thread::get_id();
  {
    absl::Notification go_on;
    WorkerPool pool(/*max_threads=*/1);
    pool.Enqueue([&] {
      EXPECT_NE(std::this_thread::get_id(), here);
      go_on.WaitForNotification();
    });
    for (int i = 0; i < 5; ++i) pool.Enqueue([&order, i] { order.push_back(i); });
    go_on.Notify();
  }
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4));
}

// The first tasks wait until there is one on each thread; the others come while all are busy.
TEST(WorkerPoolTest, ThreadsAreStartedForTasksThatWaitUpToTheLimit) {
  constexpr size_t kThreads = 3;
  absl::Mutex mutex;
  std::set<std::thread::id> threads;
  size_t num_running = 0, most_running = 0;
  absl::Notification go_on;
  WorkerPool pool(kThreads);
  for (size_t i = 0; i < 20; ++i) {
    pool.Enqueue([&] {
      {
        absl::MutexLock lock(&mutex);
        threads.insert(std::this_thread::get_id());
        most_running = std::max(most_running, ++num_running);
      }
      go_on.WaitForNotification();
      absl::MutexLock lock(&mutex);
      --num_running;
    });
  }
  {
    absl::MutexLock lock(&mutex);
    const auto all_run = [&] { return num_running == kThreads; };
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&all_run), absl::Seconds(60)));
  }
  go_on.Notify();
  pool.Shutdown();
  EXPECT_EQ(threads.size(), kThreads);
  EXPECT_EQ(most_running, kThreads);
}

}  // namespace
}  // namespace taopd::testing
