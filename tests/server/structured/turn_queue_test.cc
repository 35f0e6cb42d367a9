#include "server/structured/turn_queue.h"

#include <gtest/gtest.h>

namespace taopd {
namespace {

// Takes all, one after the other.
std::string Drain(TurnQueue<std::string>* queue) {
  std::string order;
  while (queue->size() > 0) {
    const std::string job = queue->Take();
    order += job;
    queue->Done(job.substr(0, 1));
  }
  return order;
}

TEST(TurnQueueTest, ClientsTakeTurnsInTheOrderOfArrival) {
  TurnQueue<std::string> queue;
  for (const char* job : {"a1", "a2", "a3", "b1", "b2", "c1"}) queue.Push({job[0]}, job);
  EXPECT_EQ(queue.SizeOf("a"), 3u);
  EXPECT_EQ(queue.SizeOf("x"), 0u);
  EXPECT_EQ(queue.num_clients(), 3u);
  EXPECT_EQ(Drain(&queue), "a1b1c1a2b2a3");
  EXPECT_EQ(queue.num_clients(), 0u);
}

TEST(TurnQueueTest, ANewcomerWaitsForOneJobOfEachOther) {
  TurnQueue<std::string> queue;
  for (int i = 0; i < 30; ++i) {
    queue.Push("a", "a");
    queue.Push("b", "b");
  }
  for (int i = 0; i < 20; ++i) {
    const std::string job = queue.Take();
    queue.Done(job);
  }
  queue.Push("c", "c");
  queue.Push("c", "c");
  const std::string order = Drain(&queue);
  EXPECT_EQ(order.substr(0, 6), "abcabc");
}

// It begins with the others' count, however often it comes back.
TEST(TurnQueueTest, AClientThatComesBackDoesNotOvertakeTheOthersForGood) {
  TurnQueue<std::string> queue;
  for (int i = 0; i < 10; ++i) queue.Push("a", "a");
  std::string order;
  for (int i = 0; i < 8; ++i) {
    if (queue.SizeOf("p") == 0) queue.Push("p", "p");
    const std::string job = queue.Take();
    order += job;
    queue.Done(job);
  }
  EXPECT_EQ(order, "apapapap");
}

TEST(TurnQueueTest, JobsThatRunCountAsTaken) {
  TurnQueue<std::string> queue;
  for (const char* job : {"a1", "a2", "b1"}) queue.Push({job[0]}, job);
  EXPECT_EQ(queue.Take(), "a1");  // runs on
  EXPECT_EQ(queue.Take(), "b1");
  EXPECT_EQ(queue.Take(), "a2");
}

}  // namespace
}  // namespace taopd
