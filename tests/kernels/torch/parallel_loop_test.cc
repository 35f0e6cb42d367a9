#include "kernels/torch/parallel_loop.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/kernels/torch/threads_restored.h"

namespace taopd::testing {
namespace {

class ParallelLoopTest : public ::testing::Test {
  const ThreadsRestored threads_;
};

struct Shares {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  std::set<std::thread::id> threads;
};

Shares SharesOf(int64_t num, int64_t grain) {
  std::mutex mutex;
  Shares shares;
  ParallelLoop(num, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    shares.ranges.emplace_back(begin, end);
    shares.threads.insert(std::this_thread::get_id());
  });
  std::sort(shares.ranges.begin(), shares.ranges.end());
  return shares;
}

// Returns how many threads run bodies at the same time: each waits until `num` have arrived, or for
// a minute.
size_t ThreadsThatMeet(int num) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<int> num_there{0};
  ParallelLoop(num, 1, [&](int64_t, int64_t) {
    ++num_there;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (num_there < num && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  return threads.size();
}

TEST_F(ParallelLoopTest, RangesCoverTheLoopAndHaveTheGrain) {
  for (const int threads : {1, 2, 3, 5}) {
    at::set_num_threads(threads);
    for (const int64_t num : {0, 1, 2, 7, 100}) {
      for (const int64_t grain : {0, 1, 2, 40, 1000}) {
        const Shares shares = SharesOf(num, grain);
        int64_t end = 0;
        for (const auto& [first, last] : shares.ranges) {
          EXPECT_EQ(first, end);
          EXPECT_GE(last - first, std::min(std::max<int64_t>(grain, 1), num));
          end = last;
        }
        EXPECT_EQ(end, num) << threads << ", " << grain;
        EXPECT_LE(shares.threads.size(), static_cast<size_t>(threads));
        if (threads == 1) {
          EXPECT_LE(shares.ranges.size(), 1u);
        }
      }
    }
  }
}

// A thread that is held up keeps no range from the others.
TEST_F(ParallelLoopTest, OthersTakeTheRangesOfALateThread) {
  at::set_num_threads(2);
  std::atomic<int> num_done{0};
  ParallelLoop(8, 1, [&](int64_t begin, int64_t) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (begin == 0 && num_done < 7 && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
    }
    if (begin == 0) {
      EXPECT_EQ(num_done, 7);
    }
    ++num_done;
  });
  EXPECT_EQ(num_done, 8);
}

TEST_F(ParallelLoopTest, FollowsTheNumberOfThreads) {
  for (const int threads : {4, 2, 1, 3}) {
    at::set_num_threads(threads);
    EXPECT_EQ(NumAvailableThreads(), threads);
    EXPECT_EQ(ThreadsThatMeet(threads), static_cast<size_t>(threads));
  }
}

// Inside a body, every kind of loop runs on the body's thread alone.
TEST_F(ParallelLoopTest, LoopsInALoopHaveOneThread) {
  at::set_num_threads(3);
  std::atomic<int> num_wrong{0}, num_bodies{0};
  ParallelLoop(3, 1, [&](int64_t, int64_t) {
    ++num_bodies;
    const auto self = std::this_thread::get_id();
    num_wrong += NumAvailableThreads() != 1 || at::get_num_threads() != 1;
    const auto check = [&](int64_t, int64_t) { num_wrong += std::this_thread::get_id() != self; };
    ParallelLoop(100, 1, check);
    at::parallel_for(0, 100, 1, check);
  });
  EXPECT_EQ(num_bodies, 3);
  EXPECT_EQ(num_wrong, 0);
  EXPECT_EQ(at::get_num_threads(), 3);
  at::parallel_for(0, 3, 1, [&](int64_t, int64_t) { num_wrong += NumAvailableThreads() != 1; });
  EXPECT_EQ(num_wrong, 0);
}

TEST_F(ParallelLoopTest, AnExceptionArrivesAndTheNextLoopRuns) {
  at::set_num_threads(3);
  for (const int64_t thrower : {0, 1, 2}) {
    std::atomic<int> num_ended{0};
    std::string message;
    try {
      ParallelLoop(3, 1, [&](int64_t begin, int64_t) {
        if (begin == thrower) throw std::runtime_error("share " + std::to_string(begin));
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ++num_ended;
      });
    } catch (const std::runtime_error& error) {
      message = error.what();
    }
    EXPECT_EQ(message, "share " + std::to_string(thrower));
    EXPECT_EQ(num_ended, 2);  // no thread is still working when the exception arrives
    EXPECT_EQ(NumAvailableThreads(), 3);
    EXPECT_EQ(ThreadsThatMeet(3), 3u);
  }
}

// Several callers at the same time, loops immediately after one another and after a pause in which
// all threads sleep, and jobs that do not need all workers: a worker that misses a loop must not
// take part in another.
TEST_F(ParallelLoopTest, EveryIndexIsVisitedOnceWhoeverCalls) {
  constexpr int kCallers = 4, kLoops = 2000;
  at::set_num_threads(4);
  std::atomic<int64_t> num_wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&, c] {
      at::init_num_threads();
      std::vector<int> visits(97);
      for (int loop = 0; loop < kLoops; ++loop) {
        const int64_t num = 1 + (loop * 7 + c) % 97;
        ParallelLoop(num, 1 + loop % 40, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++visits[i];
        });
        for (int64_t i = 0; i < 97; ++i) num_wrong += std::exchange(visits[i], 0) != (i < num);
        if (loop % 500 == 0) std::this_thread::sleep_for(2 * kWaitAwake);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(num_wrong, 0);
}

}  // namespace
}  // namespace taopd::testing
