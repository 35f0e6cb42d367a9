#include "trainer/teacher/cache/score_entry.h"

#include <limits>
#include <set>

#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"

namespace taopd::testing {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(ScoreEntryTest, EveryBitComesBack) {
  for (int i = 0; i < 40; ++i) {
    const int32_t top_k = i % 9;
    TeacherRequest request = i % 2 == 0 ? ExampleRequest(i, 4 + i % 13, top_k)
                                        : FullRequest(i, 4 + i % 13, top_k, 1 + i % 5);
    TeacherScores scores = ExampleScores(request, ExampleInfo());
    if (i % 3 == 0) {
      scores.log_tail.assign(scores.log_tail.size(), std::numeric_limits<float>::quiet_NaN());
      scores.sampled_log_probs[0] = -std::numeric_limits<float>::infinity();
    }
    if (i % 5 == 0 && top_k > 0) scores.log_probs[0] = -0.0f;
    if (i % 7 == 0 && top_k > 0) scores.ids[0] = std::numeric_limits<int32_t>::max();
    const std::string key = ScoreKey(request, "rev");
    const std::string bytes = MakeScoreEntry(key, scores);
    ASSERT_OK_AND_ASSIGN(const auto read, ParseScoreEntry(Bytes(bytes), key, request));
    ExpectSameBits(read, scores);
  }
}

// The sampled token is mostly among the ids, as it is when a student has learned something.
TEST(ScoreEntryTest, ARowTakesAtMost110Bytes) {
  constexpr int64_t kRows = 1000;
  constexpr int32_t kTopK = 16;
  for (const uint64_t vocab_size : {151936u, 262208u}) {
    RandomStream random(1);
    TeacherRequest request;
    request.token_ids.assign(kRows + 1, 1);
    request.score_start = 1;
    request.top_k = kTopK;
    TeacherScores scores = {.top_k = kTopK};
    for (int64_t r = 0; r < kRows; ++r) {
      for (int32_t j = 0; j < kTopK; ++j) {
        scores.ids.push_back(static_cast<int32_t>(random.NextBelow(vocab_size)));
        scores.log_probs.push_back(static_cast<float>(-random.NextUniform() - j));
      }
      scores.log_tail.push_back(-3);
      scores.sampled_log_probs.push_back(r % 2 == 0 ? scores.log_probs[r * kTopK + 3] : -20.0f);
    }
    scores.ids[0] = static_cast<int32_t>(vocab_size - 1);
    const std::string bytes = MakeScoreEntry(ScoreKey(request, "rev"), scores);
    EXPECT_LE(bytes.size(), 110 * kRows) << vocab_size;
  }
}

TEST(ScoreEntryTest, DamageIsNoticed) {
  const TeacherRequest request = FullRequest(1, 6, 3, 2);
  const std::string key = ScoreKey(request, "rev");
  const std::string bytes = MakeScoreEntry(key, ExampleScores(request, ExampleInfo()));
  ASSERT_OK(ParseScoreEntry(Bytes(bytes), key, request));
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      SCOPED_TRACE(at);
      EXPECT_ERROR(ParseScoreEntry(Bytes(damaged), key, request), kDataLoss, "");
    }
    EXPECT_ERROR(ParseScoreEntry(Bytes(bytes.substr(0, at)), key, request), kDataLoss, "");
    // A page that was never written.
    std::string torn = bytes;
    std::fill(torn.begin() + static_cast<std::ptrdiff_t>(at), torn.end(), '\0');
    EXPECT_ERROR(ParseScoreEntry(Bytes(torn), key, request), kDataLoss, "");
  }
  EXPECT_ERROR(ParseScoreEntry(Bytes(bytes + std::string(8, 'x')), key, request), kDataLoss, "");
  // The right entry of another request.
  EXPECT_ERROR(ParseScoreEntry(Bytes(bytes), ScoreKey(request, "rev-2"), request), kDataLoss,
               "another key");
  EXPECT_ERROR(ParseScoreEntry(Bytes(bytes), key, FullRequest(1, 7, 3, 2)), kDataLoss,
               "another shape");
}

TEST(ScoreKeyTest, WhatDecidesTheReplyDecidesTheKey) {
  const TeacherRequest request = FullRequest(1);
  std::set<std::string> keys = {ScoreKey(request, "rev"), ScoreKey(request, "rev-2")};
  size_t num_changes = 2;
  const auto change = [&](auto edit) {
    TeacherRequest other = request;
    edit(&other);
    keys.insert(ScoreKey(other, "rev"));
    EXPECT_EQ(keys.size(), ++num_changes);
  };
  change([](auto* r) { r->token_ids[0] += 1; });
  change([](auto* r) { r->token_ids.push_back(1); });
  change([](auto* r) { r->score_start = 4; });
  change([](auto* r) { r->top_k = 5; });
  change([](auto* r) { r->temperature = 0.5f; });
  change([](auto* r) { r->entropy = false; });
  change([](auto* r) { r->dense = false; });
  change([](auto* r) { r->num_candidates += 1; });
  change([](auto* r) { r->candidate_ids[0] += 1; });
  TeacherRequest same = request;
  same.request_id = "another";
  same.source = "another";
  EXPECT_EQ(ScoreKey(same, "rev"), ScoreKey(request, "rev"));
}

}  // namespace
}  // namespace taopd::testing
