#include "trainer/step/loss/micro_batches.h"

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
}  // namespace taopd
