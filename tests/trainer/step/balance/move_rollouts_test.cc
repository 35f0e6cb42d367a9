#include "trainer/step/balance/move_rollouts.h"

#include "tests/common/dist/rank_threads.h"

namespace taopd::testing {
namespace {

// Every field differs from its default and from those of other sequences.
ScoredRollout MovedRollout(int64_t sequence) {
  ScoredRollout item;
  const auto number = static_cast<int32_t>(sequence);
  const auto real = static_cast<float>(sequence);
  item.rollout.prompt_ids = {number, 2};
  item.rollout.response_ids.assign(static_cast<size_t>(sequence) + 1, number);
  item.rollout.behavior_log_probs.assign(static_cast<size_t>(sequence) + 1, -real);
  item.rollout.top_ids = {number + 7};
  item.rollout.finish = FinishReason::kStop;
  item.rollout.source = "source " + std::to_string(sequence);
  item.scores.support_size = sequence + 1;
  item.scores.ids = {number, -1};
  item.scores.log_probs = {-real, -2};
  item.scores.log_tail = {-real - 1};
  item.scores.sampled_log_probs = {-real - 3};
  item.scores.entropy = {real};
  item.scores.dense_log_probs = {-real, -5};
  item.scores.num_shared = sequence + 2;
  item.scores.num_beyond_vocabulary = sequence + 3;
  item.scores.weight = 0.5 + static_cast<double>(sequence);
  return item;
}

void ExpectEqual(const ScoredRollout& a, const ScoredRollout& b) {
  EXPECT_EQ(a.rollout.prompt_ids, b.rollout.prompt_ids);
  EXPECT_EQ(a.rollout.response_ids, b.rollout.response_ids);
  EXPECT_EQ(a.rollout.behavior_log_probs, b.rollout.behavior_log_probs);
  EXPECT_EQ(a.rollout.top_ids, b.rollout.top_ids);
  EXPECT_EQ(a.rollout.finish, b.rollout.finish);
  EXPECT_EQ(a.rollout.source, b.rollout.source);
  EXPECT_EQ(a.scores.support_size, b.scores.support_size);
  EXPECT_EQ(a.scores.ids, b.scores.ids);
  EXPECT_EQ(a.scores.log_probs, b.scores.log_probs);
  EXPECT_EQ(a.scores.log_tail, b.scores.log_tail);
  EXPECT_EQ(a.scores.sampled_log_probs, b.scores.sampled_log_probs);
  EXPECT_EQ(a.scores.entropy, b.scores.entropy);
  EXPECT_EQ(a.scores.dense_log_probs, b.scores.dense_log_probs);
  EXPECT_EQ(a.scores.num_shared, b.scores.num_shared);
  EXPECT_EQ(a.scores.num_beyond_vocabulary, b.scores.num_beyond_vocabulary);
  EXPECT_EQ(a.scores.weight, b.scores.weight);
}

TEST(MoveRollouts, EachComesToItsRankAsItWas) {
  const std::vector<RolloutMove> moves = {{3, 0, 2}, {4, 1, 0}, {6, 0, 2}, {7, 2, 1}};
  OnRanks(3, ProcessGroupOptions(), [&](ProcessGroup& group) {
    std::map<int64_t, ScoredRollout> mine;
    for (const RolloutMove& move : moves) {
      if (move.from == group.rank()) mine[move.sequence] = MovedRollout(move.sequence);
    }
    const auto item = [&](int64_t sequence) -> const ScoredRollout& { return mine.at(sequence); };
    ASSERT_OK_AND_ASSIGN(const auto received, MoveRollouts(moves, item, &group));
    size_t expected = 0;
    for (const RolloutMove& move : moves) {
      if (move.to != group.rank()) continue;
      ++expected;
      ASSERT_TRUE(received.contains(move.sequence));
      ExpectEqual(received.at(move.sequence), MovedRollout(move.sequence));
    }
    EXPECT_EQ(received.size(), expected);
    EXPECT_TRUE(MoveRollouts({}, item, &group)->empty());
    group.Leave();
  });
}

}  // namespace
}  // namespace taopd::testing
