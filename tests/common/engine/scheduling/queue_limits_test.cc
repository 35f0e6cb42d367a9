#include "common/engine/scheduling/queue_limits.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr QueueLimits kLimits = {.max_tokens = 120, .max_requests = 1000, .max_client_share = 0.5};

// A queue that is never emptied.
class FillingQueue {
 public:
  explicit FillingQueue(const QueueLimits& limits) : limits_(limits) {}

  QueueDecision Offer(const std::string& client, int64_t num_tokens, int64_t num_requests = 1) {
    const QueueLoad added = {num_tokens, num_requests};
    const QueueDecision decision = DecideQueue(limits_, queue_, clients_[client], added);
    if (decision.status.ok()) {
      for (QueueLoad* load : {&queue_, &clients_[client]}) {
        load->num_tokens += num_tokens;
        load->num_requests += num_requests;
      }
    }
    return decision;
  }
  // All clients offer requests in turns until none is accepted.
  void Flood(const std::vector<std::string>& clients, int64_t num_tokens) {
    for (bool changed = true; changed;) {
      changed = false;
      for (const std::string& client : clients)
        changed = Offer(client, num_tokens).status.ok() || changed;
    }
  }
  int64_t tokens(const std::string& client) { return clients_[client].num_tokens; }
  const QueueLoad& queue() const { return queue_; }

 private:
  const QueueLimits limits_;
  QueueLoad queue_;
  std::map<std::string, QueueLoad> clients_;
};

TEST(QueueLimitsTest, ClientsThatFloodGetEqualPartsAndOneStaysFree) {
  std::vector<std::string> clients;
  for (int n = 1; n <= 5; ++n) {
    clients.push_back("client " + std::to_string(n));
    FillingQueue queue(kLimits);
    queue.Flood(clients, 1);
    for (const std::string& client : clients) {
      EXPECT_NEAR(static_cast<double>(queue.tokens(client)), 120.0 / (n + 1), 1.5) << n;
    }
    // The newcomer gets the room that is left for it.
    EXPECT_OK(queue.Offer("newcomer", 10).status);
  }
}

TEST(QueueLimitsTest, ANewcomersFirstRequestNeedsOnlyRoom) {
  FillingQueue queue(kLimits);
  queue.Flood({"flooder"}, 1);
  EXPECT_EQ(queue.tokens("flooder"), 59);
  const QueueDecision long_one = queue.Offer("newcomer", 59);
  EXPECT_FALSE(long_one.only_client_share);
  EXPECT_ERROR(long_one.status, kResourceExhausted,
               "the queue holds 59 tokens: 59 more exceed max_queued_tokens 120 less 3 for shorter "
               "requests");
  EXPECT_OK(queue.Offer("newcomer", 58).status);
  const QueueDecision second = queue.Offer("newcomer", 1);
  EXPECT_TRUE(second.only_client_share);
  EXPECT_ERROR(second.status, kResourceExhausted,
               "this client has 58 tokens queued; 1 more would exceed its share "
               "(max_client_queue_share 0.5 of max_queued_tokens 120 less 1 for shorter requests)");
  const QueueDecision full = queue.Offer("third", 4);
  EXPECT_FALSE(full.only_client_share);
  const std::string text(full.status.message());
  EXPECT_EQ(text, "the queue holds 117 tokens: 4 more exceed max_queued_tokens 120");
}

TEST(QueueLimitsTest, OneRequestOfAnyLengthFindsTheEmptyQueueOpenAndABatchDoesNot) {
  FillingQueue batches(kLimits), queue(kLimits);
  EXPECT_TRUE(batches.Offer("a", 61, 2).only_client_share);
  EXPECT_OK(batches.Offer("a", 60, 2).status);
  EXPECT_OK(queue.Offer("a", 500).status);
  EXPECT_ERROR(queue.Offer("b", 1).status, kResourceExhausted, "500 tokens");
}

TEST(QueueLimitsTest, RequestsHaveSharesToo) {
  FillingQueue queue({.max_tokens = 1 << 20, .max_requests = 4, .max_client_share = 0.5});
  EXPECT_OK(queue.Offer("a", 1).status);
  EXPECT_OK(queue.Offer("a", 1).status);
  EXPECT_ERROR(queue.Offer("a", 1).status, kResourceExhausted,
               "2 requests queued; 1 more would exceed its share (max_client_queue_share 0.5 of "
               "max_queued_requests 4)");
  EXPECT_OK(queue.Offer("b", 1).status);
  EXPECT_OK(queue.Offer("c", 1).status);
  EXPECT_ERROR(queue.Offer("d", 1).status, kResourceExhausted, "the queue holds 4 requests");
}

// The lengths include each that could fill the limit without a rest, and others between them.
TEST(QueueLimitsTest, AFloodLeavesItsOwnClientRoomForRequestsOfHalfTheLength) {
  const QueueLimits limits = {.max_tokens = 9600, .max_requests = 100'000, .max_client_share = 0.5};
  for (int64_t length = 2; length <= 300; ++length) {
    FillingQueue queue(limits);
    queue.Flood({"a"}, length);
    EXPECT_GT(queue.tokens("a"), 4800 - 3 * length);
    EXPECT_OK(queue.Offer("a", length / 2).status);
  }
  // The same share is kept for longer ones.
  for (int64_t length : {400, 1200, 4000}) {
    FillingQueue queue(limits);
    queue.Flood({"a"}, length);
    EXPECT_OK(queue.Offer("a", 150).status);
  }
}

TEST(QueueLimitsTest, NewcomersOfWhichEachIsAllowedOneRequestLeaveRoomForAShortOne) {
  FillingQueue queue({.max_tokens = 9600, .max_requests = 1000, .max_client_share = 0.5});
  std::vector<std::string> clients;
  for (int c = 0; c < 100; ++c) clients.push_back("client " + std::to_string(c));
  queue.Flood(clients, 96);
  EXPECT_GT(queue.queue().num_tokens, 9600 - 3 * 96);
  EXPECT_OK(queue.Offer("newcomer", 48).status);
}

TEST(QueueLimitsTest, ABatchLeavesAPlaceForOneRequest) {
  FillingQueue queue({.max_tokens = 1 << 20, .max_requests = 640, .max_client_share = 0.5});
  EXPECT_OK(queue.Offer("a", 300, 300).status);
  EXPECT_TRUE(queue.Offer("a", 20, 20).only_client_share);
  EXPECT_OK(queue.Offer("a", 10, 10).status);
  EXPECT_TRUE(queue.Offer("a", 10, 10).only_client_share);
  EXPECT_OK(queue.Offer("a", 1).status);
}

TEST(QueueLimitsTest, NothingIsKeptOfAnEmptyQueueNorWithoutShares) {
  FillingQueue empty({.max_tokens = 9600, .max_requests = 1000, .max_client_share = 0.5});
  EXPECT_OK(empty.Offer("a", 4800, 2).status);
  FillingQueue shared({.max_tokens = 9600, .max_requests = 4, .max_client_share = 1.0});
  EXPECT_OK(shared.Offer("a", 4800).status);
  EXPECT_OK(shared.Offer("a", 4800).status);
}

}  // namespace
}  // namespace taopd::testing
