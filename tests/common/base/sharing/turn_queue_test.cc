#include "common/base/sharing/turn_queue.h"

#include <gtest/gtest.h>

namespace taopd::testing {
namespace {

constexpr int64_t kNumTurns = 4;

using Queue = TurnQueue<std::string>;

// A job's client is its first letter.
void Push(const char* job, Queue* queue) { queue->Push({job[0]}, job); }
void PushAll(std::initializer_list<const char*> jobs, Queue* queue) {
  for (const char* job : jobs) Push(job, queue);
}
void End(const std::string& job, Queue* queue) { queue->Done(job.substr(0, 1)); }

// Does all jobs, or `num`, one after the other.
std::string Drain(Queue* queue, int num = INT32_MAX) {
  std::string order;
  for (; num > 0 && queue->size() > 0; --num) {
    const std::string job = queue->Next().value();
    order += job;
    End(job, queue);
  }
  return order;
}

TEST(TurnQueueTest, ClientsTakeTurnsInTheOrderOfArrival) {
  Queue queue(kNumTurns);
  PushAll({"a1", "a2", "a3", "b1", "b2", "c1"}, &queue);
  EXPECT_EQ(queue.SizeOf("a"), 3u);
  EXPECT_EQ(queue.SizeOf("x"), 0u);
  EXPECT_EQ(queue.num_clients(), 3u);
  EXPECT_EQ(Drain(&queue), "a1b1c1a2b2a3");
  EXPECT_EQ(queue.num_clients(), 0u);
  EXPECT_EQ(queue.Next(), std::nullopt);
}

TEST(TurnQueueTest, ANewcomerWaitsForOneJobOfEachOther) {
  Queue queue(kNumTurns);
  for (int i = 0; i < 30; ++i) PushAll({"a", "b"}, &queue);
  Drain(&queue, 20);
  PushAll({"c", "c"}, &queue);
  EXPECT_EQ(Drain(&queue).substr(0, 6), "abcabc");
}

// It begins with the others' count, however often it comes back.
TEST(TurnQueueTest, AClientThatComesBackDoesNotOvertakeTheOthersForGood) {
  Queue queue(kNumTurns);
  for (int i = 0; i < 10; ++i) Push("a", &queue);
  std::string order;
  for (int i = 0; i < 8; ++i) {
    if (queue.SizeOf("p") == 0) Push("p", &queue);
    order += Drain(&queue, 1);
  }
  EXPECT_EQ(order, "apapapap");
}

TEST(TurnQueueTest, AFreeTurnGoesToTheClientWithTheFewest) {
  Queue queue(3);
  PushAll({"a1", "a2", "a3", "a4", "a5"}, &queue);
  for (const char* job : {"a1", "a2", "a3"}) EXPECT_EQ(queue.Next(), job);
  PushAll({"b1", "c1"}, &queue);
  EXPECT_EQ(queue.Next(), std::nullopt);
  End("a2", &queue);
  EXPECT_EQ(queue.Next(), "b1");  // before c, who came later, and a, who holds two
  EXPECT_EQ(queue.Next(), std::nullopt);
  End("a1", &queue);
  EXPECT_EQ(queue.Next(), "c1");
  End("a3", &queue);
  EXPECT_EQ(queue.Next(), "a4");  // in the order of arrival
}

TEST(TurnQueueTest, AClientHoldsAtMostItsShareOfTheTurns) {
  Queue queue(kNumTurns, 0.5);
  PushAll({"a1", "a2", "a3"}, &queue);
  EXPECT_EQ(queue.Next(), "a1");
  EXPECT_EQ(queue.Next(), "a2");
  EXPECT_EQ(queue.Next(), std::nullopt);  // two are kept for others
  PushAll({"b1", "b2", "c1"}, &queue);
  EXPECT_EQ(queue.Next(), "b1");
  EXPECT_EQ(queue.Next(), "c1");  // not b2: c has none
  EXPECT_EQ(queue.Next(), std::nullopt);
}

TEST(TurnQueueTest, WaitingJobsCanBeTakenOut) {
  Queue queue(1);
  PushAll({"a1", "a2", "b1"}, &queue);
  EXPECT_EQ(queue.Next(), "a1");
  EXPECT_EQ(queue.TakeWaiting().size(), 2u);
  EXPECT_EQ(queue.size(), 0u);
  End("a1", &queue);
  EXPECT_EQ(queue.Next(), std::nullopt);
}

}  // namespace
}  // namespace taopd::testing
