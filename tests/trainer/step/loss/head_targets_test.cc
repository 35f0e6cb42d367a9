#include "trainer/step/loss/head_targets.h"

#include <gtest/gtest.h>

#include <limits>

namespace taopd::testing {
namespace {

TEST(MakeStudentInput, RowsPredictTheResponse) {
  ScoredRollout a, b;
  a.rollout.prompt_ids = {5, 6, 7};
  a.rollout.response_ids = {8, 9};
  b.rollout.prompt_ids = {4};
  b.rollout.response_ids = {3};
  const StudentInput input = MakeStudentInput({&a, &b}, at::kCPU);
  EXPECT_EQ(input.batch.cu_seqlens, (std::vector<int64_t>{0, 4, 5}));
  EXPECT_TRUE(at::equal(input.batch.token_ids_T, at::tensor({5, 6, 7, 8, 4}, at::kLong)));
  // Token 7 (row 2) predicts 8, token 8 (row 3) predicts 9, token 4 (row 4) predicts 3.
  EXPECT_TRUE(at::equal(input.rows_N, at::tensor({2, 3, 4}, at::kLong)));
}

// A prompt that successive sequences share is stored once, without its last token; other prompts
// are complete.
TEST(MakeStudentInput, SharesPrompts) {
  ScoredRollout a, b, c, d;
  a.rollout.prompt_ids = b.rollout.prompt_ids = {5, 6, 7};
  a.rollout.response_ids = {8, 9};
  b.rollout.response_ids = {1, 2, 3};
  c.rollout.prompt_ids = d.rollout.prompt_ids = {4};  // nothing to share
  c.rollout.response_ids = {3};
  d.rollout.response_ids = {2, 1};
  const StudentInput input = MakeStudentInput({&a, &b, &c, &d}, at::kCPU, /*share_prompts=*/true);
  EXPECT_EQ(input.batch.cu_seqlens, (std::vector<int64_t>{0, 2, 4, 7, 8, 10}));
  EXPECT_EQ(input.batch.parents, (std::vector<int64_t>{-1, 0, 0, -1, -1}));
  EXPECT_TRUE(
      at::equal(input.batch.token_ids_T, at::tensor({5, 6, 7, 8, 7, 1, 2, 4, 4, 2}, at::kLong)));
  EXPECT_TRUE(at::equal(input.rows_N, at::tensor({2, 3, 4, 5, 6, 7, 8, 9}, at::kLong)));
  EXPECT_TRUE(MakeStudentInput({&a, &c}, at::kCPU, /*share_prompts=*/true).batch.parents.empty());
}

// Two sequences with a support of two tokens; the second has one row.
TEST(MakeHeadTargets, RowsOfAllSequencesInOrder) {
  ScoredRollout a, b;
  a.rollout.response_ids = {8, 9};
  a.rollout.behavior_log_probs = {-1, -2};
  a.scores.support_size = 2;
  a.scores.ids = {1, 2, 3, -1};
  a.scores.log_probs = {-1, -2, -3, -std::numeric_limits<float>::infinity()};
  a.scores.log_tail = {-4, -5};
  a.scores.sampled_log_probs = {-6, -7};
  b.rollout.response_ids = {3};
  b.rollout.behavior_log_probs = {-3};
  b.scores.support_size = 2;
  b.scores.ids = {5, 6};
  b.scores.log_probs = {-0.5, -1.5};
  b.scores.log_tail = {-8};
  b.scores.sampled_log_probs = {-9};
  const HeadTargets targets = MakeHeadTargets({&a, &b}, {0.25, 0.5}, at::kCPU);
  EXPECT_TRUE(
      at::equal(targets.support_ids_Nk, at::tensor({1, 2, 3, -1, 5, 6}, at::kInt).reshape({3, 2})));
  EXPECT_EQ(targets.teacher_log_probs_Nk[1][0].item<float>(), -3);
  EXPECT_TRUE(at::equal(targets.teacher_log_tail_N, at::tensor({-4.0f, -5.0f, -8.0f})));
  EXPECT_TRUE(at::equal(targets.sampled_ids_N, at::tensor({8, 9, 3}, at::kInt)));
  EXPECT_TRUE(at::equal(targets.teacher_sampled_log_probs_N, at::tensor({-6.0f, -7.0f, -9.0f})));
  EXPECT_FALSE(targets.teacher_entropy_N.defined());
  EXPECT_TRUE(at::equal(targets.behavior_log_probs_N, at::tensor({-1.0f, -2.0f, -3.0f})));
  EXPECT_TRUE(at::equal(targets.row_weights_N, at::tensor({0.25f, 0.25f, 0.5f})));
  b.rollout.behavior_log_probs.clear();
  EXPECT_DEATH(MakeHeadTargets({&a, &b}, {0.25, 0.5}, at::kCPU), "values.size");
}

}  // namespace
}  // namespace taopd::testing
