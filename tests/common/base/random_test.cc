#include "common/base/random.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <numeric>
#include <set>

namespace taopd::testing {
namespace {

// Known answers of the authors' Random123 distribution (kat_vectors, philox4x32 10).
TEST(Philox, MatchesPublishedKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(RandomStream, PositionsAndSkippedNormalNumbersAreThoseOfCalls) {
  RandomStream stream(7), from_word_5(7, 5), skipped(7, 25);
  for (int i = 0; i < 5; ++i) stream.NextU32();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(stream.NextU64(), from_word_5.NextU64());
  for (int i = 0; i < 5; ++i) stream.NextNormal();
  skipped.SkipNormals(5);
  EXPECT_EQ(skipped.NextNormal(), stream.NextNormal());
}

TEST(RandomStream, ANormalNumberIsMadeOfTheNextTwoUniformOnes) {
  for (const uint64_t position : {0, 1, 2, 3}) {
    RandomStream stream(7, position), uniform(7, position);
    for (int i = 0; i < 3; ++i) {
      const double u = uniform.NextUniform(), v = uniform.NextUniform();
      EXPECT_EQ(stream.NextNormal(), std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * M_PI * v));
    }
  }
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

TEST(FreshBits, AreDistinctAndVaryInEveryBit) {
  std::set<uint64_t> seen;
  uint64_t ever_set = 0, always_set = ~uint64_t{0};
  for (int i = 0; i < 1000; ++i) {
    const uint64_t bits = FreshBits();
    seen.insert(bits);
    ever_set |= bits;
    always_set &= bits;
  }
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_EQ(ever_set, ~uint64_t{0});
  EXPECT_EQ(always_set, 0u);
}

// A generator with a state of its own would repeat the parent's values in a forked process.
TEST(FreshBits, DifferInAForkedProcess) {
  FreshBits();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    const uint64_t bits = FreshBits();
    ::_exit(::write(ends[1], &bits, sizeof(bits)) == sizeof(bits) ? 0 : 1);
  }
  ::close(ends[1]);
  uint64_t bits_of_child = 0;
  EXPECT_EQ(::read(ends[0], &bits_of_child, sizeof(bits_of_child)),
            static_cast<ssize_t>(sizeof(bits_of_child)));
  ::close(ends[0]);
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_NE(FreshBits(), bits_of_child);
}

}  // namespace
}  // namespace taopd::testing
