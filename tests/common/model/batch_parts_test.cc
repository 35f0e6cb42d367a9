#include "common/model/batch_parts.h"

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace taopd::testing {
namespace {

PagedBatch BatchOf(const std::vector<int64_t>& rows_of_sequences) {
  PagedBatch batch;
  int64_t num_rows = 0;
  for (const int64_t rows : rows_of_sequences) {
    batch.sequences.push_back({num_rows, rows, /*past_len=*/3 * rows, nullptr});
    num_rows += rows;
  }
  batch.token_ids_T = at::arange(num_rows, at::kLong);
  return batch;
}

TEST(BatchPartsTest, PartsHoldAllSequencesInOrder) {
  RandomStream random(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int64_t> rows(1 + random.NextBelow(40));
    for (int64_t& count : rows) count = 1 + static_cast<int64_t>(random.NextBelow(60));
    const PagedBatch batch = BatchOf(rows);
    const int64_t num_threads = 1 + static_cast<int64_t>(random.NextBelow(8));
    const std::vector<PagedBatch> parts = PartsOf(batch, num_threads);
    ASSERT_GE(parts.size(), 1U);
    EXPECT_LE(static_cast<int64_t>(parts.size()), num_threads);
    EXPECT_LE(static_cast<int64_t>(parts.size() - 1) * kRowsPerPart, batch.token_ids_T.size(0));
    size_t sequence = 0;
    for (const PagedBatch& part : parts) {
      int64_t row = 0;
      for (const PagedSequence& piece : part.sequences) {
        ASSERT_LT(sequence, batch.sequences.size());
        const PagedSequence& whole = batch.sequences[sequence++];
        EXPECT_EQ(piece.first_row, row);
        EXPECT_EQ(piece.num_rows, whole.num_rows);
        EXPECT_EQ(piece.past_len, whole.past_len);
        EXPECT_EQ(part.token_ids_T[row].item<int64_t>(), whole.first_row);
        row += piece.num_rows;
      }
      EXPECT_EQ(part.token_ids_T.size(0), row);
    }
    EXPECT_EQ(sequence, batch.sequences.size());
  }
}

TEST(BatchPartsTest, PartsAreEven) {
  const std::vector<PagedBatch> parts = PartsOf(BatchOf(std::vector<int64_t>(145, 1)), 3);
  ASSERT_EQ(parts.size(), 3U);
  for (const PagedBatch& part : parts) EXPECT_NEAR(part.token_ids_T.size(0), 145 / 3.0, 1.0);
}

TEST(BatchPartsTest, FewRowsAndOneSequenceStayTogether) {
  EXPECT_EQ(PartsOf(BatchOf(std::vector<int64_t>(2 * kRowsPerPart - 1, 1)), 4).size(), 1U);
  EXPECT_EQ(PartsOf(BatchOf(std::vector<int64_t>(2 * kRowsPerPart, 1)), 4).size(), 2U);
  EXPECT_EQ(PartsOf(BatchOf({500}), 4).size(), 1U);
}

TEST(BatchPartsTest, OnePartCallsOnLayer) {
  PagedBatch batch = BatchOf({40, 40, 40});
  batch.on_layer = [] {};
  const std::vector<PagedBatch> parts = PartsOf(batch, 3);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_TRUE(parts[0].on_layer);
  EXPECT_FALSE(parts[1].on_layer || parts[2].on_layer);
}

}  // namespace
}  // namespace taopd::testing
