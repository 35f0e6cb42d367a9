// Tests of the choice of the sequence that is preempted for another one.
#include "common/engine/scheduling/client_shares.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace taopd::testing {
namespace {

using Resource = ClientShares::Resource;
using PreemptionLimit = ClientShares::PreemptionLimit;

class ClientSharesTest : public ::testing::Test {
 protected:
  // Makes a sequence that generates from a prompt of `num_blocks` blocks.
  Sequence* Make(const std::string& client, int64_t num_blocks) {
    InferenceRequest request = {.client = client};
    request.token_ids.assign(num_blocks * pool_.block_tokens(), 1);
    request.sampling = SamplingParams();
    sequences_.push_back(std::make_unique<Sequence>(sequences_.size() + 1, std::move(request),
                                                    nullptr, std::vector<int32_t>()));
    return sequences_.back().get();
  }
  // Makes one that runs and has its blocks.
  Sequence* Run(const std::string& client, int64_t num_blocks) {
    Sequence* const sequence = Make(client, num_blocks);
    for (int64_t i = 0; i < num_blocks; ++i) sequence->blocks.push_back(pool_.Allocate());
    sequence->scheduling.admission = sequence->handle;
    return sequence;
  }
  ClientShares Shares(RequestHandle oldest = 0) const {
    ClientShares shares(pool_, oldest);
    for (const auto& sequence : sequences_) {
      if (!sequence->blocks.empty()) shares.Add(sequence.get());
    }
    return shares;
  }

  BlockPool pool_{64, 4, /*prefix_caching=*/true};
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

TEST_F(ClientSharesTest, TheNewestSequencesOfTheLargestClientGiveWay) {
  Run("a", 4);
  Sequence* const second = Run("a", 4);
  Sequence* const third = Run("a", 4);
  Run("b", 3);
  ClientShares shares = Shares();
  shares.AddRequest(*Make("c", 2), 2);
  EXPECT_TRUE(shares.OtherHoldsAsMuch());
  EXPECT_EQ(shares.RemoveVictim(Resource::kBlocks, PreemptionLimit::kShare, nullptr), third);
  EXPECT_EQ(shares.RemoveVictim(Resource::kBlocks, PreemptionLimit::kShare, nullptr), second);
  // The last one stays, as does the only one of b.
  EXPECT_EQ(shares.RemoveVictim(Resource::kBlocks, PreemptionLimit::kShare, nullptr), nullptr);
}

TEST_F(ClientSharesTest, TheLargestClientKeepsAsMuchAsTheRequestingOneThenHas) {
  Run("a", 4);
  Run("a", 4);
  Run("c", 3);
  ClientShares shares = Shares();
  shares.AddRequest(*Make("c", 2), 2);  // c would have 5 blocks and a 4
  EXPECT_EQ(shares.RemoveVictim(Resource::kBlocks, PreemptionLimit::kShare, nullptr), nullptr);
  EXPECT_EQ(shares.RemoveVictim(Resource::kSlots, PreemptionLimit::kShare, nullptr), nullptr);
}

TEST_F(ClientSharesTest, NeitherTheOldestSequenceNorTheLeaderGivesWay) {
  Sequence* const oldest = Run("a", 2);
  Sequence* const middle = Run("a", 2);
  Sequence* const leader = Run("a", 2);
  ClientShares shares = Shares(oldest->handle);
  shares.AddRequest(*Make("a", 1), 1);
  // With every right, a client takes from itself.
  EXPECT_EQ(shares.RemoveVictim(Resource::kSlots, PreemptionLimit::kAll, leader), middle);
  EXPECT_EQ(shares.RemoveVictim(Resource::kSlots, PreemptionLimit::kAll, leader), nullptr);
}

TEST_F(ClientSharesTest, SharedBlocksDoNotBecomeFree) {
  Sequence* const owner = Run("a", 3);
  Sequence* const sharer = Make("a", 3);
  sharer->blocks = owner->blocks;
  for (const int32_t block : sharer->blocks) pool_.AddReference(block);
  ClientShares shares = Shares();
  EXPECT_EQ(shares.NumFreedBlocks(*sharer), 0);
  shares.AddRequest(*Make("b", 1), 1);
  EXPECT_EQ(shares.RemoveVictim(Resource::kBlocks, PreemptionLimit::kShare, nullptr), nullptr);
  EXPECT_EQ(shares.RemoveVictim(Resource::kSlots, PreemptionLimit::kShare, nullptr), sharer);
}

TEST_F(ClientSharesTest, AGrowingSequenceTakesFromTheLargestClientOrGivesWay) {
  Sequence* const small = Run("a", 1);
  Run("b", 2);
  Sequence* const newest = Run("b", 2);
  EXPECT_EQ(Shares().VictimForGrowth(small), newest);
  EXPECT_EQ(Shares().VictimForGrowth(newest), newest);
}

}  // namespace
}  // namespace taopd::testing
