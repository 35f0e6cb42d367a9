#include "server/generation/delivery_thread.h"

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>

#include <thread>
#include <vector>

namespace taopd {
namespace {

TEST(DeliveryThreadTest, RunsAllTasksInTheirOrderOnAThreadOfItsOwn) {
  std::vector<int> order;
  const std::thread::id here = std::this_thread::get_id();
  {
    absl::Notification go_on;
    DeliveryThread delivery;
    delivery.Post([&] {
      EXPECT_NE(std::this_thread::get_id(), here);
      go_on.WaitForNotification();
    });
    for (int i = 0; i < 5; ++i) delivery.Post([&order, i] { order.push_back(i); });
    go_on.Notify();
  }
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 3, 4));
}

}  // namespace
}  // namespace taopd
