// A rollout together with the teacher's scores that the loss needs. It does not depend on LibTorch.
//
// Shapes: R response positions, k support size, V the student's vocabulary.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/rollout/rollout_engine.h"

namespace taopd {

// The teacher's distribution at each response position, reduced to the support of the loss.
// ReduceToSupport (support.h) makes it from a teacher's reply. q is the teacher's distribution.
struct SupportScores {
  int64_t support_size = 0;  // k
  // [R, k] The ids of a row are distinct and below V. A row with fewer than k ids ends in -1.
  std::vector<int32_t> ids;
  std::vector<float> log_probs;  // [R, k] log q of the ids; -inf where the id is -1
  // [R] log of the probability that q gives to all ids outside the row's support. NaN if the
  // teacher does not report it; the head then derives it from log_probs.
  std::vector<float> log_tail;
  std::vector<float> sampled_log_probs;  // [R] log q of the response token
  // [R] Entropy of q over the teacher's whole vocabulary, in nats. Empty unless it was requested.
  std::vector<float> entropy;
  // [R, V] log q of every id of the student. Empty unless the support is the full vocabulary.
  std::vector<float> dense_log_probs;
  // The number of (position, id) pairs in which the id is among both the teacher's and the
  // student's most probable tokens. Only a union counts them.
  int64_t num_shared = 0;
  // The number of the teacher's tokens that the student's vocabulary lacks. Their probability is
  // part of log_tail.
  int64_t num_beyond_vocabulary = 0;
  // Factor of the sequence's loss: the weight of its teacher if there are several.
  double weight = 1.0;
};

// One training example.
struct ScoredRollout {
  Rollout rollout;
  SupportScores scores;  // one row for each token of rollout.response_ids
  // The prompt that the teacher saw in front of the response; empty if it saw the student's. It
  // stays with the rank that generated the response, and is not stored.
  std::vector<int32_t> teacher_prompt_ids;
  // Whether the teacher should have seen a prompt of its own that is missing (teacher_views.h).
  bool lacks_teacher_prompt = false;
  // The response's reward, and how much better that is than its baseline (trainer/reward); 0
  // without rewards.
  double reward = 0;
  double advantage = 0;
};

}  // namespace taopd
