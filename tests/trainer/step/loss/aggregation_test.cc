#include "trainer/step/loss/aggregation.h"

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
  // With a loss of 1 per token, the means are 1, and the sum per sequence is the mean length.
  EXPECT_NEAR(total(Aggregation::kTokenMean), 1.0, 1e-15);
  EXPECT_NEAR(total(Aggregation::kSeqMeanTokenMean), 1.0, 1e-15);
  EXPECT_NEAR(total(Aggregation::kSeqMeanTokenSum), 8.0 / 3, 1e-15);
  // Token-mean weights all tokens equally; the others depend on the sequence.
  EXPECT_EQ(SequenceWeights(Aggregation::kTokenMean, lengths)[0],
            SequenceWeights(Aggregation::kTokenMean, lengths)[2]);
  EXPECT_NEAR(SequenceWeights(Aggregation::kSeqMeanTokenMean, lengths)[1], 1.0 / 9, 1e-15);
}

}  // namespace
}  // namespace taopd
