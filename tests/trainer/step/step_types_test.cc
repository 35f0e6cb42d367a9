#include "trainer/step/step_types.h"

#include <cmath>
#include <numeric>

#include "common/base/random.h"

#include "tests/support/status_matchers.h"

namespace taopd {
namespace {

TEST(SequenceWeights, TotalsAreThoseOfVerl) {
  const std::vector<int64_t> lengths = {1, 3, 4};
  auto total = [&](Aggregation aggregation) {
    const std::vector<double> weights = SequenceWeights(aggregation, lengths);
    double sum = 0;
    for (size_t i = 0; i < lengths.size(); ++i) sum += weights[i] * static_cast<double>(lengths[i]);
    return sum;
  };
  // With a loss of 1 per token: the means are 1, the sum per sequence is the mean length.
  EXPECT_NEAR(total(Aggregation::kTokenMean), 1.0, 1e-15);
  EXPECT_NEAR(total(Aggregation::kSeqMeanTokenMean), 1.0, 1e-15);
  EXPECT_NEAR(total(Aggregation::kSeqMeanTokenSum), 8.0 / 3, 1e-15);
  // Token-mean weighs all tokens alike; the others by sequence.
  EXPECT_EQ(SequenceWeights(Aggregation::kTokenMean, lengths)[0],
            SequenceWeights(Aggregation::kTokenMean, lengths)[2]);
  EXPECT_NEAR(SequenceWeights(Aggregation::kSeqMeanTokenMean, lengths)[1], 1.0 / 9, 1e-15);
}

TEST(Aggregation, UnknownNamesAreRefused) {
  EXPECT_OK(ParseAggregation("seq-mean-token-sum"));
  EXPECT_ERROR(ParseAggregation("mean"), absl::StatusCode::kInvalidArgument, "\"mean\"");
}

TEST(MicroBatchEnds, FillsTheBudgetInOrder) {
  EXPECT_EQ(MicroBatchEnds({3, 3, 4, 1}, 7), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(MicroBatchEnds({10, 1, 10}, 7), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(MicroBatchEnds({1, 1, 1}, 100), (std::vector<int64_t>{3}));
  EXPECT_TRUE(MicroBatchEnds({}, 7).empty());
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
  }
}

}  // namespace
}  // namespace taopd
