#include "common/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

namespace taopd {
namespace {

// Known answers of the authors' Random123 distribution (kat_vectors, philox4x32 10).
TEST(Philox, MatchesPublishedKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(RandomStream, PositionSkipsWords) {
  RandomStream stream(7);
  for (int i = 0; i < 5; ++i) stream.NextU32();
  RandomStream from_word_5(7, 5);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(stream.NextU64(), from_word_5.NextU64());
}

TEST(RandomStream, NamesGiveDifferentStreams) {
  std::set<uint64_t> seeds;
  for (uint64_t step = 0; step < 100; ++step) {
    for (uint64_t sample = 0; sample < 100; ++sample)
      seeds.insert(DeriveSeed(1, "rollout", {step, sample}));
  }
  seeds.insert(DeriveSeed(1, "data", {0, 0}));
  seeds.insert(DeriveSeed(2, "rollout", {0, 0}));
  seeds.insert(DeriveSeed(1, "rollout", {0}));
  EXPECT_EQ(seeds.size(), 10003u);
}

TEST(RandomStream, UniformMomentsAndRange) {
  RandomStream stream(11);
  constexpr int kDraws = 200000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = stream.NextUniform();
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  // Five standard errors of the mean of a uniform and of its square.
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kDraws));
}

TEST(RandomStream, NormalMoments) {
  RandomStream stream(12);
  constexpr int kDraws = 200000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = stream.NextNormal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0.0, 5 / std::sqrt(kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0, 5 * std::sqrt(2.0 / kDraws));
}

TEST(RandomStream, ShuffleIsAPermutationOfEveryOrder) {
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    std::vector<int> items(4);
    std::iota(items.begin(), items.end(), 0);
    RandomStream(seed).Shuffle(&items);
    orders.insert(items);
  }
  EXPECT_EQ(orders.size(), 24u);
}

}  // namespace
}  // namespace taopd
