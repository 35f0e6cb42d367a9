#include "common/engine/scheduling/waiting_queue.h"
#include "tests/support/status_matchers.h"

#include <gtest/gtest.h>
#include <malloc.h>

namespace taopd::testing {
namespace {

class WaitingQueueTest : public ::testing::Test {
 protected:
  RequestHandle Add(const std::string& client, bool generates = true, bool uncached = false) {
    InferenceRequest request = {.token_ids = {1, 2, 3}, .client = client};
    if (generates) request.sampling = SamplingParams();
    if (!generates) request.score = ScoreParams();
    auto sequence =
        std::make_unique<Sequence>(next_, std::move(request), nullptr, std::vector<int32_t>());
    sequence->scheduling.uncached = uncached;
    queue_.Add(std::move(sequence));
    return next_++;
  }

  void AddAll(std::initializer_list<const char*> clients) {
    for (const char* client : clients) Add(client);
  }

  // Admits the next sequence for `cost` tokens and, unless `keep`, ends it at once. Returns its
  // handle.
  RequestHandle Take(int64_t cost, bool keep = false) {
    Sequence* const next = queue_.Next(true, true);
    if (next == nullptr) return 0;
    const std::unique_ptr<Sequence> owned = queue_.Remove(*next);
    queue_.Charge(owned->request.client, cost);
    if (!keep) queue_.End(owned->request.client);
    return owned->handle;
  }

  WaitingQueue queue_;
  RequestHandle next_ = 1;
};

TEST_F(WaitingQueueTest, OneClientIsServedInTheOrderOfArrival) {
  Add("a");
  Add("a", /*generates=*/false);
  Add("a");
  EXPECT_EQ(queue_.size(), 3);
  EXPECT_EQ(queue_.num_tokens(), 9);
  EXPECT_EQ(queue_.Next(true, false)->handle, 2u);
  EXPECT_EQ(queue_.Next(false, false), nullptr);
  for (RequestHandle expected : {1, 2, 3, 0}) EXPECT_EQ(Take(10), expected);
  EXPECT_EQ(queue_.num_tokens(), 0);
}

TEST_F(WaitingQueueTest, KnowsWhatOfAClientWaits) {
  Add("a");
  Add("a", /*generates=*/false);
  Add("b");
  EXPECT_EQ(queue_.WaitingOf("a").num_requests, 2);
  EXPECT_EQ(queue_.WaitingOf("a").num_tokens, 6);
  EXPECT_EQ(queue_.WaitingOf("c").num_requests, 0);
  Take(10, /*keep=*/true);
  EXPECT_EQ(queue_.WaitingOf("a").num_requests, 1);
  EXPECT_EQ(queue_.WaitingOf("a").num_tokens, 3);
  EXPECT_EQ(queue_.WaitingOf("b").num_requests, 1);
}

TEST_F(WaitingQueueTest, TheClientWithTheFewestServedTokensIsNext) {
  for (int i = 0; i < 4; ++i) Add("a");  // 1..4
  for (int i = 0; i < 3; ++i) Add("");   // 5..7
  EXPECT_EQ(Take(10), 1u);               // the counts are equal, so the earlier one
  EXPECT_EQ(Take(4), 5u);
  EXPECT_EQ(Take(4), 6u);
  EXPECT_EQ(Take(4), 7u);  // 12 served
  EXPECT_EQ(Take(1), 2u);
}

TEST_F(WaitingQueueTest, AClientThatWasIdleStartsWithTheLowestCountOfTheActiveOnes) {
  AddAll({"a", "a", "a"});
  EXPECT_EQ(Take(100), 1u);
  const RequestHandle late = Add("b");
  // Both clients have 100, and the request of a is older: b has saved nothing while it was idle.
  EXPECT_EQ(Take(10), 2u);
  EXPECT_EQ(Take(50), late);  // b is idle again, with 150
  EXPECT_EQ(Take(5, /*keep=*/true), 3u);
  // The counts stay: a has 115 and b 150.
  const RequestHandle again = Add("b");
  const RequestHandle other = Add("a");
  EXPECT_EQ(Take(1), other);
  EXPECT_EQ(Take(1), again);
}

TEST_F(WaitingQueueTest, ServedTokensOfRunningWorkCount) {
  AddAll({"a", "a", "b", "b"});
  EXPECT_EQ(Take(1, /*keep=*/true), 1u);
  EXPECT_EQ(Take(1, /*keep=*/true), 3u);
  queue_.Charge("a", 5);
  EXPECT_EQ(Take(1), 4u);
}

TEST_F(WaitingQueueTest, SkippedSequencesComeBackInTheNextRound) {
  AddAll({"a", "a", "b"});
  queue_.BeginRound();
  queue_.Skip(*queue_.Next(true, true));
  EXPECT_EQ(queue_.Next(true, true)->handle, 2u);
  queue_.Skip(*queue_.Next(true, true));
  EXPECT_EQ(queue_.Next(true, true)->handle, 3u);
  queue_.BeginRound();
  EXPECT_EQ(queue_.Next(true, true)->handle, 1u);
}

TEST_F(WaitingQueueTest, WorkWithoutThePoolHasItsOwnTurns) {
  Add("a", false, /*uncached=*/true);
  Add("a", false, /*uncached=*/true);
  Add("b", false, /*uncached=*/true);
  EXPECT_EQ(queue_.num_uncached(), 3);
  EXPECT_EQ(queue_.Next(true, true), nullptr);
  EXPECT_EQ(queue_.NextUncached()->handle, 1u);
  queue_.Charge("a", 1);
  EXPECT_EQ(queue_.NextUncached()->handle, 3u);
}

TEST_F(WaitingQueueTest, FindsThePromptOfALeaderForTheSameClientOnly) {
  AddAll({"a", "b"});
  Add("a", /*generates=*/false);
  AddAll({"a", "a"});
  const std::unique_ptr<Sequence> leader = queue_.Remove(*queue_.Next(true, true));
  const auto handles = [&](int64_t max_count) {
    std::vector<RequestHandle> found;
    for (const Sequence* sequence : queue_.WithPromptOf(*leader, max_count))
      found.push_back(sequence->handle);
    return found;
  };
  EXPECT_THAT(handles(9), ElementsAre(4, 5));
  EXPECT_THAT(handles(1), ElementsAre(4));
  EXPECT_THAT(handles(0), IsEmpty());
}

TEST_F(WaitingQueueTest, ManyClientsThatCameOnceLeaveNoMemoryBehind) {
  constexpr int64_t kMaxGrowth = 1 << 20;  // the records of all clients would take over 3 MB
  const auto heap_bytes = [] {
    const auto info = ::mallinfo2();  // 0 with a sanitizer's heap
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  Add("steady");
  const int64_t before = heap_bytes();
  for (int i = 0; i < 10000; ++i) {
    Add("client " + std::to_string(i));
    queue_.Charge("steady", 1);
    Take(1);
  }
  EXPECT_LT(heap_bytes() - before, kMaxGrowth);
}

}  // namespace
}  // namespace taopd::testing
