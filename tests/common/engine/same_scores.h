// Compares scores byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/engine/engine.h"

namespace taopd::testing {

template <typename T>
void ExpectSameBytes(const std::vector<T>& value, const std::vector<T>& expected,
                     const std::string& what) {
  ASSERT_EQ(value.size(), expected.size()) << what;
  if (value.empty()) return;  // memcmp must not get null
  EXPECT_EQ(std::memcmp(value.data(), expected.data(), value.size() * sizeof(T)), 0) << what;
}

inline void ExpectSameScores(const ScoreRows& a, const ScoreRows& b, const std::string& what) {
  EXPECT_EQ(a.num_rows, b.num_rows) << what;
  ExpectSameBytes(a.ids, b.ids, what + " ids");
  ExpectSameBytes(a.log_probs, b.log_probs, what + " log_probs");
  ExpectSameBytes(a.log_tail, b.log_tail, what + " log_tail");
  ExpectSameBytes(a.sampled_log_probs, b.sampled_log_probs, what + " sampled_log_probs");
  ExpectSameBytes(a.sampled_ranks, b.sampled_ranks, what + " sampled_ranks");
  ExpectSameBytes(a.entropy, b.entropy, what + " entropy");
  ExpectSameBytes(a.candidate_log_probs, b.candidate_log_probs, what + " candidates");
  ExpectSameBytes(a.log_support_mass, b.log_support_mass, what + " log_support_mass");
  ExpectSameBytes(a.log_sum_exp, b.log_sum_exp, what + " log_sum_exp");
  ExpectSameBytes(a.candidate_log_tail, b.candidate_log_tail, what + " candidate_log_tail");
  ExpectSameBytes(a.dense_log_probs, b.dense_log_probs, what + " dense");
}

}  // namespace taopd::testing
