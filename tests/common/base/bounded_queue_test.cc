#include "common/base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace taopd {
namespace {

TEST(BoundedQueue, RefusesWhatDoesNotFit) {
  BoundedQueue<int> queue(10);
  EXPECT_TRUE(queue.TryPush(1, 6));
  EXPECT_FALSE(queue.TryPush(2, 5));
  EXPECT_TRUE(queue.TryPush(3, 4));
  EXPECT_EQ(queue.cost(), 10);
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.cost(), 4);
}

TEST(BoundedQueue, AnOversizedItemPassesAlone) {
  BoundedQueue<int> queue(10);
  EXPECT_TRUE(queue.TryPush(1, 100));
  EXPECT_FALSE(queue.TryPush(2, 1));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_TRUE(queue.TryPush(2, 1));
}

TEST(BoundedQueue, RefusedItemIsUntouched) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  ASSERT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto item = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(item)));
  ASSERT_NE(item, nullptr);
  EXPECT_EQ(*item, 2);
}

TEST(BoundedQueue, CloseDrainsAndWakesEverybody) {
  BoundedQueue<int> queue(1);
  ASSERT_TRUE(queue.Push(1));
  std::thread blocked_producer([&] { EXPECT_FALSE(queue.Push(2)); });
  // The producer either is waiting or finds the queue closed; both must end with a refusal.
  queue.Close();
  blocked_producer.join();
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueue, ManyThreadsLoseNothing) {
  BoundedQueue<int> queue(7);
  constexpr int kPerProducer = 1000;
  std::vector<std::thread> producers;
  for (int p = 0; p < 4; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kPerProducer; ++i) queue.Push(p * kPerProducer + i, 1 + i % 3);
    });
  }
  std::vector<int> seen(4 * kPerProducer, 0);
  std::thread consumer([&] {
    while (auto item = queue.Pop()) ++seen[*item];
  });
  for (auto& producer : producers) producer.join();
  queue.Close();
  consumer.join();
  for (int count : seen) EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace taopd
