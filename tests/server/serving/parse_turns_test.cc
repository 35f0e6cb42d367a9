// Threads wait for their turns; a test goes on when a thread has its turn, never after some time.
#include "server/serving/parse_turns.h"
#include "tests/support/status_matchers.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace taopd::testing {
namespace {

constexpr size_t kSmall = 1000, kMedium = size_t{512} << 10, kLarge = size_t{8} << 20;

class ParseTurnsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    held_.clear();
    for (std::thread& thread : threads_) thread.join();
  }
  void Hold(const std::string& client, size_t size, int count) {
    for (int i = 0; i < count; ++i) held_.push_back(std::make_unique<Held>(&turns_, client, size));
  }
  // A thread that takes a turn, writes down its name, and ends the turn. Returns once it waits.
  void Start(const std::string& client, const std::string& name, size_t size) {
    threads_.emplace_back([this, client, name, size] {
      const ParseTurns::Turn turn = turns_.Wait(client, size);
      const std::scoped_lock lock(mutex_);
      order_.push_back(name);
    });
    ++num_started_;
    while (turns_.num_waiting() < num_started_) std::this_thread::yield();
  }

  struct Held {
    Held(ParseTurns* turns, const std::string& client, size_t size)
        : turn(turns->Wait(client, size)) {}
    const ParseTurns::Turn turn;
  };

  int num_trims_ = 0;
  int64_t held_bytes_ = 0;
  HeapTrim heap_{[this] { return held_bytes_; }, [this] { ++num_trims_; }};
  ParseTurns turns_{&heap_};
  std::vector<std::unique_ptr<Held>> held_;
  std::vector<std::thread> threads_;
  size_t num_started_ = 0;
  std::mutex mutex_;
  std::vector<std::string> order_;
};

TEST_F(ParseTurnsTest, ClientsTakeTurns) {
  Hold("a", kLarge, 2);
  for (const char* name : {"a1", "a2", "a3"}) Start("a", name, kLarge);
  Start("b", "b1", kLarge);
  held_.pop_back();  // one turn goes round, and a keeps the other one
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  EXPECT_THAT(order_, ElementsAre("b1", "a1", "a2", "a3"));
}

TEST_F(ParseTurnsTest, SmallBodiesDoNotWaitForLargeOnes) {
  Hold("a", kLarge, 2);
  Hold("a", kMedium, 4);
  const ParseTurns::Turn turn = turns_.Wait("a", kSmall);
}

TEST_F(ParseTurnsTest, FreeMemoryIsReturnedBehindLargeBodies) {
  Hold("a", kSmall, 1);
  held_bytes_ = HeapTrim::kGrowthBytes;
  held_.clear();
  EXPECT_EQ(num_trims_, 0);
  Hold("a", kLarge, 1);
  held_.clear();
  EXPECT_EQ(num_trims_, 1);
}

}  // namespace
}  // namespace taopd::testing
