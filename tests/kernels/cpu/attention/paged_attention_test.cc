// Paged attention against plain float64 loops. The bytes must be the same whatever the batch, the
// chunks, the blocks and the threads are, for every instruction set of this processor.
#include "kernels/cpu/attention/paged_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/cpu/attention/attention_batch.h"
#include "tests/kernels/cpu/supported_sets.h"
#include "tests/kernels/one_thread.h"

namespace taopd::cpu {
namespace {

using testing::AttendExactly;
using testing::AttentionBatch;
using testing::AttentionCase;
using testing::ExactAttention;
using testing::OneThread;
using testing::RandomRows;
using testing::SupportedSets;
using testing::UnevenThreads;

using Rows = std::vector<std::vector<float>>;

// Bounds of the error of an output, relative to sum |p v|. Scores of a few units lose a few float32
// roundings, which become relative errors of the weights. Weights that are rounded to bfloat16
// change the sum of p v and the sum of p by 2^-8 each, and the output is rounded once more.
double Tolerance(InstructionSet set, DataType dtype) {
  constexpr double kFloat32Rounding = 3e-6;
  constexpr double kBfloat16Rounding = 1.0 / 256;
  if (dtype == DataType::kFloat32) return kFloat32Rounding;
  const bool rounds_weights = set >= InstructionSet::kAvx512Bf16;
  return kFloat32Rounding + (rounds_weights ? 3 : 1) * kBfloat16Rounding;
}

std::string NameOfCase(const AttentionCase& c, InstructionSet set) {
  return std::string(NameOf(set)) + " " + testing::NameOf(c);
}

void ExpectMatchesPlainLoops(const AttentionCase& c, const Rows& rows, const AttentionBatch& batch,
                             InstructionSet set) {
  const std::string what = NameOfCase(c, set);
  EXPECT_FALSE(batch.written_beyond_row()) << what;
  const int64_t size = c.num_heads * c.head_size;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    const std::vector<float> out = batch.ValuesOf(s);
    const ExactAttention expected = AttendExactly(c, rows[s]);
    ASSERT_EQ(out.size(), expected.values.size()) << what;
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], expected.values[i], Tolerance(set, c.dtype) * expected.sizes[i])
          << what << ": sequence " << s << ", position " << i / size << ", element " << i % size;
    }
  }
}

AttentionCase Shape(DataType dtype, int64_t num_heads, int64_t num_kv_heads, int64_t head_size,
                    std::vector<int64_t> lengths, int64_t sliding_window = 0) {
  const float scale = 1 / std::sqrt(static_cast<float>(head_size));
  return {{dtype, num_heads, num_kv_heads, head_size, scale, sliding_window}, std::move(lengths)};
}

std::vector<AttentionCase> ManyShapes() {
  std::vector<AttentionCase> cases;
  for (DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    cases.push_back(Shape(dtype, 2, 2, 8, {1, 2, 33}));
    cases.push_back(Shape(dtype, 4, 2, 64, {300, 31, 32, 257}));
    cases.push_back(Shape(dtype, 4, 1, 16, {70, 529}));
    cases.push_back(Shape(dtype, 7, 1, 80, {64, 290}));
    cases.push_back(Shape(dtype, 2, 1, 96, {275}));
    cases.push_back(Shape(dtype, 1, 1, 128, {301}));
    cases.push_back(Shape(dtype, 3, 1, 34, {77}));
    cases.push_back(Shape(dtype, 16, 1, 10, {40}));
    cases.push_back(Shape(dtype, 4, 2, 16, {40, 300}, 1));
    cases.push_back(Shape(dtype, 4, 2, 16, {40, 300}, 2));
    cases.push_back(Shape(dtype, 2, 2, 16, {300}, 5));
    cases.push_back(Shape(dtype, 2, 1, 64, {600}, 100));
    cases.push_back(Shape(dtype, 7, 1, 8, {600}, 257));
  }
  return cases;
}

TEST(PagedAttention, MatchesPlainLoops) {
  for (const AttentionCase& c : ManyShapes()) {
    const Rows rows = RandomRows(c, 1);
    for (const InstructionSet set : SupportedSets()) {
      AttentionBatch batch(c, rows, 2, set);
      batch.StepInChunks(1 << 20, OneThread);
      ExpectMatchesPlainLoops(c, rows, batch, set);
    }
  }
}

TEST(PagedAttention, BytesDoNotDependOnChunksBlocksOrThreads) {
  for (const AttentionCase& c : ManyShapes()) {
    const Rows rows = RandomRows(c, 3);
    for (const InstructionSet set : SupportedSets()) {
      AttentionBatch whole(c, rows, 4, set);
      whole.StepInChunks(1 << 20, OneThread);
      uint64_t seed = 5;
      for (int64_t chunk : {1, 7, 32, 100}) {
        AttentionBatch batch(c, rows, seed++, set);
        batch.StepInChunks(chunk, chunk == 1 ? OneThread : UnevenThreads(chunk % 4 + 1));
        for (size_t s = 0; s < c.lengths.size(); ++s) {
          ASSERT_EQ(batch.BytesOf(s), whole.BytesOf(s))
              << NameOfCase(c, set) << ", chunks of " << chunk << ", sequence " << s;
        }
      }
    }
  }
}

// Prompts, chunks of prompts and single tokens in one batch are compared with each sequence alone.
TEST(PagedAttention, BytesDoNotDependOnTheOtherSequences) {
  for (DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    for (int64_t window : {0, 50}) {
      const AttentionCase c = Shape(dtype, 4, 2, 32, {300, 1, 65, 520, 40}, window);
      const Rows rows = RandomRows(c, 6);
      for (const InstructionSet set : SupportedSets()) {
        AttentionBatch batch(c, rows, 7, set);
        batch.Step({100, 1, 0, 519, 3}, UnevenThreads(3));
        batch.Step({1, 0, 65, 1, 30}, UnevenThreads(2));
        batch.StepInChunks(90, UnevenThreads(4));
        for (size_t s = 0; s < c.lengths.size(); ++s) {
          AttentionCase one = c;
          one.lengths = {c.lengths[s]};
          AttentionBatch alone(one, {rows[s]}, 8, set);
          alone.StepInChunks(1 << 20, OneThread);
          ASSERT_EQ(batch.BytesOf(s), alone.BytesOf(0)) << NameOfCase(c, set) << ", sequence " << s;
        }
      }
    }
  }
}

// One sequence with many partitions decodes, so several tasks share a row.
TEST(PagedAttention, PartitionsOfOneRowAreMergedInOrderByWhicheverThread) {
  for (DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    const AttentionCase c = Shape(dtype, 4, 2, 16, {2200});
    const Rows rows = RandomRows(c, 9);
    for (const InstructionSet set : SupportedSets()) {
      AttentionBatch whole(c, rows, 10, set);
      whole.StepInChunks(1 << 20, UnevenThreads(2));
      AttentionBatch batch(c, rows, 11, set);
      batch.Step({2150}, OneThread);
      for (int i = 0; i < 45; ++i) batch.Step({1}, UnevenThreads(i % 4 + 1));
      batch.Step({5}, UnevenThreads(4));
      EXPECT_EQ(batch.BytesOf(0), whole.BytesOf(0)) << NameOfCase(c, set);
    }
  }
}

// A row that does not see a NaN has the same bytes as without it; all rows that see it are NaN.
TEST(PagedAttention, NanReachesTheRowsThatSeeItAndNoOther) {
  constexpr int64_t kBad = 45;
  for (DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    for (int64_t window : {0, 7}) {
      const AttentionCase c = Shape(dtype, 4, 2, 16, {80}, window);
      const Rows rows = RandomRows(c, 12);
      for (const InstructionSet set : SupportedSets()) {
        AttentionBatch clean(c, rows, 13, set);
        clean.StepInChunks(1 << 20, OneThread);
        const std::vector<float> expected = clean.ValuesOf(0);
        const int64_t size = c.num_heads * c.head_size;
        for (int64_t column : {int64_t{3}, c.KeyColumn() + 3, c.ValueColumn() + 3}) {
          Rows bad_rows = rows;
          bad_rows[0][kBad * c.RowSize() + column] = NAN;
          AttentionBatch batch(c, bad_rows, 13, set);
          batch.StepInChunks(1 << 20, OneThread);
          const std::vector<float> out = batch.ValuesOf(0);
          for (int64_t i = 0; i < c.lengths[0]; ++i) {
            const bool later = i >= kBad && (window == 0 || i < kBad + window);
            for (int64_t j = 0; j < size; ++j) {
              const int64_t head = j / c.head_size, place = j % c.head_size;
              const bool nan = column < c.KeyColumn()     ? i == kBad && head == 0
                               : column < c.ValueColumn() ? later && head < 2
                                                          : later && head < 2 && place == 3;
              const float value = out[i * size + j];
              ASSERT_TRUE(nan ? std::isnan(value) : value == expected[i * size + j])
                  << NameOfCase(c, set) << ", NaN in column " << column << ", row " << i
                  << ", element " << j << ": " << value;
            }
          }
        }
      }
    }
  }
}

// Values that agree are unchanged except for float32 rounding, however the weights are rounded,
// even if scores are large.
TEST(PagedAttention, WeightsAddUpToOne) {
  for (DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    AttentionCase c = Shape(dtype, 4, 2, 16, {600});
    c.scale = 20;
    Rows rows = RandomRows(c, 14);
    for (int64_t i = 0; i < c.lengths[0]; ++i) {
      std::fill_n(&rows[0][i * c.RowSize() + c.ValueColumn()], c.num_kv_heads * c.head_size, 1.5f);
    }
    for (const InstructionSet set : SupportedSets()) {
      AttentionBatch batch(c, rows, 15, set);
      batch.StepInChunks(1 << 20, OneThread);
      for (float value : batch.ValuesOf(0)) {
        ASSERT_NEAR(value, 1.5f, 1e-5f) << NameOfCase(c, set);
      }
    }
  }
}

TEST(PagedAttention, AnEmptyBatchIsNothing) {
  const KeyValuePool pool = {DataType::kFloat32, 2, 16, nullptr};
  cpu::AppendKeysAndValues(AppendKeysValues{pool}, OneThread);
  cpu::AttendToPages(PagedAttention{.pool = pool, .num_heads = 4}, OneThread);
}

}  // namespace
}  // namespace taopd::cpu
