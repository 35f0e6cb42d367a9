#include "server/structured/grammar_uses.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

constexpr int kMax = 12;

class GrammarUsesTest : public ::testing::Test {
 protected:
  // Uses new grammars until it is refused. Returns how many.
  int Flood(const std::string& client) {
    for (int n = 0;; ++n) {
      auto use = uses_->Begin(client, NewId());
      if (!use.ok()) return n;
      held_.push_back(*std::move(use));
    }
  }
  const void* NewId() { return &ids_[num_ids_++]; }

  std::vector<char> ids_ = std::vector<char>(1000);
  size_t num_ids_ = 0;
  std::shared_ptr<GrammarUses> uses_ = GrammarUses::New(kMax, 0.5);
  std::vector<std::unique_ptr<GrammarUses::Use>> held_;
};

TEST_F(GrammarUsesTest, FloodersLeaveAPartAndTheFirstGrammarOfAClientNeedsOnlyRoom) {
  EXPECT_EQ(Flood("a"), 6);
  EXPECT_EQ(Flood("b"), 3);
  EXPECT_EQ(Flood("c"), 1);
  EXPECT_EQ(Flood("d"), 1);
  EXPECT_EQ(Flood("e"), 1);
  EXPECT_ERROR(uses_->Begin("f", NewId()), absl::StatusCode::kResourceExhausted,
               "12 grammars are in use");
  EXPECT_EQ(uses_->num_used(), 12u);
  held_.clear();
  EXPECT_EQ(uses_->num_used(), 0u);
  EXPECT_EQ(Flood(""), kMax);  // nobody's share
}

TEST_F(GrammarUsesTest, AGrammarCountsOnceInAllAndOnceForEachClient) {
  const void* const shared = NewId();
  for (const char* client : {"a", "a", "b"}) {
    ASSERT_OK_AND_ASSIGN(auto use, uses_->Begin(client, shared));
    held_.push_back(std::move(use));
  }
  EXPECT_EQ(uses_->num_used(), 1u);
  held_.erase(held_.begin());
  EXPECT_EQ(Flood("a"), 5);  // and the shared one
  const size_t num_held = held_.size();
  EXPECT_EQ(Flood(""), kMax - 6);
  ASSERT_OK_AND_ASSIGN(auto late, uses_->Begin("late", shared));  // needs no process
  late.reset();
  held_.resize(num_held);
  held_.resize(2);
  EXPECT_EQ(uses_->num_used(), 1u);
  held_.clear();
  EXPECT_EQ(uses_->num_used(), 0u);
}

TEST_F(GrammarUsesTest, AUseMovesFromAPlaceToItsGrammar) {
  const void* const grammar = NewId();
  ASSERT_OK_AND_ASSIGN(auto use, uses_->Begin("a", NewId()));
  use->Move(grammar);
  EXPECT_EQ(uses_->num_used(), 1u);
  ASSERT_OK_AND_ASSIGN(auto again, uses_->Begin("a", grammar));
  EXPECT_EQ(uses_->num_used(), 1u);
  use.reset();
  EXPECT_EQ(uses_->num_used(), 1u);
  uses_.reset();  // goes with the last use
}

}  // namespace
}  // namespace taopd
