#include "trainer/step/loss/micro_batches.h"

#include <gtest/gtest.h>

#include <numeric>

#include "common/base/random.h"

namespace taopd::testing {
namespace {

TEST(MicroBatchEnds, FillsTheBudgetInOrder) {
  EXPECT_EQ(MicroBatchEnds({3, 3, 4, 1}, 7), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(MicroBatchEnds({10, 1, 10}, 7), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(MicroBatchEnds({1, 1, 1}, 100), (std::vector<int64_t>{3}));
  EXPECT_TRUE(MicroBatchEnds({}, 7).empty());
}

TEST(MicroBatchEnds, NoRunIsANearlyEmptyRest) {
  EXPECT_EQ(MicroBatchEnds(std::vector<int64_t>(9, 1), 4), (std::vector<int64_t>{3, 6, 9}));
  const std::vector<int64_t> ends = MicroBatchEnds(std::vector<int64_t>(13, 1), 4);
  ASSERT_EQ(ends.size(), 4u);
  EXPECT_EQ(ends.back(), 13);
  EXPECT_LE(ends[2], 10);
}

TEST(MicroBatchEnds, EveryItemOnceWithinTheBudget) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed);
    std::vector<int64_t> tokens(random.NextBelow(20));
    for (int64_t& t : tokens) t = 1 + static_cast<int64_t>(random.NextBelow(12));
    const int64_t budget = 1 + static_cast<int64_t>(random.NextBelow(20));
    int64_t begin = 0;
    for (int64_t end : MicroBatchEnds(tokens, budget)) {
      ASSERT_GT(end, begin);
      const int64_t sum = std::accumulate(tokens.begin() + begin, tokens.begin() + end, int64_t{0});
      EXPECT_TRUE(sum <= budget || end == begin + 1);
      begin = end;
    }
    EXPECT_EQ(begin, static_cast<int64_t>(tokens.size()));
    // The number is as small as by filling each micro-batch completely.
    size_t num_full = 0;
    int64_t filled = budget + 1;
    for (const int64_t t : tokens) {
      filled += t;
      if (filled > budget) {
        filled = t;
        ++num_full;
      }
    }
    EXPECT_EQ(MicroBatchEnds(tokens, budget).size(), num_full);
  }
}

TEST(SequenceWeights, TotalsAreThoseOfVerl) {
  const std::vector<int64_t> lengths = {1, 3, 4};
  auto total = [&](Aggregation aggregation) {
    const std::vector<double> weights = SequenceWeights(aggregation, lengths);
    double sum = 0;
    for (size_t i = 0; i < lengths.size(); ++i) sum += weights[i] * static_cast<double>(lengths[i]);
    return sum;
  };
  // With a loss of 1 per token, the means are 1, and the sum per sequence is the mean length.
  EXPECT_NEAR(total(Aggregation::kTokenMean), 1.0, 1e-15);
  EXPECT_NEAR(total(Aggregation::kSeqMeanTokenMean), 1.0, 1e-15);
  EXPECT_NEAR(total(Aggregation::kSeqMeanTokenSum), 8.0 / 3, 1e-15);
  // Token-mean weights all tokens equally; the others depend on the sequence.
  EXPECT_EQ(SequenceWeights(Aggregation::kTokenMean, lengths)[0],
            SequenceWeights(Aggregation::kTokenMean, lengths)[2]);
  EXPECT_NEAR(SequenceWeights(Aggregation::kSeqMeanTokenMean, lengths)[1], 1.0 / 9, 1e-15);
}

// A masked sequence counts neither above nor below the line (verl's masked means).
TEST(SequenceWeights, AMaskedSequenceIsAsIfItWereNotThere) {
  for (const Aggregation aggregation :
       {Aggregation::kTokenMean, Aggregation::kSeqMeanTokenMean, Aggregation::kSeqMeanTokenSum}) {
    const std::vector<double> without = SequenceWeights(aggregation, {1, 4});
    EXPECT_EQ(SequenceWeights(aggregation, {1, 0, 4}),
              (std::vector<double>{without[0], 0, without[1]}));
    EXPECT_EQ(SequenceWeights(aggregation, {0, 0}), (std::vector<double>{0, 0}));
  }
}

}  // namespace
}  // namespace taopd::testing
