#include "common/base/worker_pool.h"

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>

#include <thread>
#include <vector>

namespace taopd {
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
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 3, 4));
}

}  // namespace
}  // namespace taopd
