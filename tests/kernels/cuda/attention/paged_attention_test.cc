// Attention over plain pages on CUDA against double loops, and its guarantee: the same bits however
// the rows are divided into steps.
#include "taopd/attention/paged_attention_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/attention_problem.h"
#include "tests/kernels/cuda/device_array.h"

namespace taopd::testing {
namespace {

// Puts a NaN into one element of a sequence.
void PutNan(Stored* sequence, int64_t element) {
  std::memset(&sequence->bytes[element * SizeOf(sequence->type)], 0xff, SizeOf(sequence->type));
}

// The rows of one step: pairs of a sequence and its number of rows.
using Step = std::vector<std::pair<size_t, int64_t>>;

// Sequences with random queries, keys and values, which use pages that start as NaN and shuffled
// block tables, and are computed in steps of some rows each.
class PagedRun {
 public:
  // `seed` shuffles the block tables.
  PagedRun(const AttentionShape& shape, const std::vector<Stored>& sequences, uint64_t seed)
      : shape_(shape),
        sequences_(sequences),
        tables_(BlockTables(shape, sequences, seed)),
        tables_on_device_(tables_),
        keys_(Nan(PoolBytes())),
        values_(Nan(PoolBytes())) {
    for (const Stored& sequence : sequences) {
      const int64_t length = sequence.size() / shape.RowSize();
      outputs_.emplace_back(length * shape.num_heads * shape.head_size, std::nanf(""));
      past_.push_back(0);
    }
  }

  // Appends the next rows and computes their attention.
  void Run(const Step& step) {
    std::vector<PagedSequence> batch(sequences_.size());
    std::vector<int32_t> positions, lines;
    std::vector<uint8_t> rows;
    int64_t num_rows = 0;
    for (const auto& [s, num] : step) {
      batch[s] = {num_rows, num, past_[s], nullptr};
      const int64_t bytes = shape_.RowSize() * SizeOf(shape_.dtype);
      for (int64_t i = 0; i < num; ++i) {
        const int64_t position = past_[s] + i;
        positions.push_back(static_cast<int32_t>(position));
        lines.push_back(static_cast<int32_t>(s));
        const auto row = sequences_[s].bytes.begin() + position * bytes;
        rows.insert(rows.end(), row, row + bytes);
        rows.insert(rows.end(), kPadding * SizeOf(shape_.dtype), 0xff);
      }
      num_rows += num;
    }
    Compute(batch, positions, lines, rows, num_rows);
    for (const auto& [s, num] : step) past_[s] += num;
  }
  void RunAll(const std::vector<Step>& steps) {
    for (const Step& step : steps) Run(step);
  }

  // Returns [length, N, D] of each sequence; NaN where no step has computed a row.
  const std::vector<std::vector<float>>& outputs() const { return outputs_; }

 private:
  static constexpr int64_t kPadding = 8;  // elements after each row

  static std::vector<uint8_t> Nan(int64_t bytes) { return std::vector<uint8_t>(bytes, 0xff); }
  int64_t PoolBytes() const {
    return static_cast<int64_t>(tables_.size()) * shape_.num_kv_heads * kBlockTokens *
           shape_.head_size * SizeOf(shape_.dtype);
  }
  // One row per sequence, with as many blocks as entries, each used once.
  std::vector<int32_t> BlockTables(const AttentionShape& shape,
                                   const std::vector<Stored>& sequences, uint64_t seed) {
    for (const Stored& sequence : sequences) {
      const int64_t length = sequence.size() / shape.RowSize();
      max_blocks_ = std::max(max_blocks_, (length + kBlockTokens - 1) / kBlockTokens);
    }
    std::vector<int32_t> tables(max_blocks_ * sequences.size());
    std::iota(tables.begin(), tables.end(), 0);
    std::shuffle(tables.begin(), tables.end(), std::mt19937_64(seed));
    return tables;
  }

  void Compute(const std::vector<PagedSequence>& batch, const std::vector<int32_t>& positions,
               const std::vector<int32_t>& lines, const std::vector<uint8_t>& rows,
               int64_t num_rows) {
    const int64_t N = shape_.num_heads, K = shape_.num_kv_heads, D = shape_.head_size;
    const int64_t element = SizeOf(shape_.dtype), stride = shape_.RowSize() + kPadding;
    DeviceArray<uint8_t> qkv(rows), out(Nan(num_rows * (N * D + kPadding) * element));
    DeviceArray<int32_t> positions_on_device(positions), lines_on_device(lines);
    const PlainPages pages = {shape_.dtype, K, D, keys_.data(), values_.data()};
    RotateAndAppend append = {.pages = pages,
                              .num_rows = num_rows,
                              .num_heads = N,
                              .positions_T = positions_on_device.data(),
                              .sequences_T = lines_on_device.data(),
                              .block_tables_SM = tables_on_device_.data(),
                              .max_blocks = max_blocks_,
                              .k_TKD = qkv.data() + N * D * element,
                              .v_TKD = qkv.data() + (N + K) * D * element};
    append.k_row_stride = append.v_row_stride = stride;
    ASSERT_EQ(RotateAndAppendCuda(append, {}), "");

    const PagedTiles plan =
        PlanPagedTiles(batch.data(), static_cast<int64_t>(batch.size()), N, K, D);
    DeviceArray<PagedTile> tiles(plan.tiles_I);
    const PlainPagedAttention attention = {.pages = pages,
                                           .num_heads = N,
                                           .scale = shape_.scale,
                                           .sliding_window = shape_.sliding_window,
                                           .counts = plan.counts,
                                           .tiles_I = tiles.data(),
                                           .block_tables_SM = tables_on_device_.data(),
                                           .max_blocks = max_blocks_,
                                           .q_TND = qkv.data(),
                                           .q_row_stride = stride,
                                           .out_TND = out.data(),
                                           .out_row_stride = N * D + kPadding};
    DeviceContext context = {.workspace_bytes = PagedAttentionWorkspaceBytes(attention)};
    DeviceArray<uint8_t> workspace(Nan(context.workspace_bytes));
    context.workspace = workspace.data();
    ASSERT_EQ(PagedAttentionCuda(attention, context), "");

    const std::vector<float> computed = Stored{shape_.dtype, out.Values()}.Values();
    for (size_t s = 0; s < batch.size(); ++s) {
      for (int64_t i = 0; i < batch[s].num_rows; ++i) {
        const auto from = computed.begin() + (batch[s].first_row + i) * (N * D + kPadding);
        std::copy(from, from + N * D, outputs_[s].begin() + (past_[s] + i) * N * D);
      }
    }
  }

  const AttentionShape shape_;
  const std::vector<Stored> sequences_;
  int64_t max_blocks_ = 0;
  std::vector<int32_t> tables_;
  DeviceArray<int32_t> tables_on_device_;
  DeviceArray<uint8_t> keys_, values_;
  std::vector<std::vector<float>> outputs_;
  std::vector<int64_t> past_;
};

// Relative to values of size 1: sums in float32, and one rounding (2^-9) of a bfloat16 result.
double ToleranceOf(DataType type) { return type == DataType::kFloat32 ? 1e-5 : 0.004; }

void ExpectOracle(const AttentionShape& shape, const Stored& sequence,
                  const std::vector<float>& ours, const std::string& what) {
  const std::vector<double> expected = AttendExactly(shape, sequence.Values()).values;
  ASSERT_EQ(ours.size(), expected.size());
  const int64_t row_size = shape.num_heads * shape.head_size;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(ours[i])) << what << ", row " << i / row_size;
      continue;
    }
    ASSERT_NEAR(ours[i], expected[i], ToleranceOf(shape.dtype) * (1 + std::abs(expected[i])))
        << what << ", row " << i / row_size << ", element " << i % row_size;
  }
}

// Runs steps of random sequences of these lengths.
void ExpectOracleAfter(const std::vector<Step>& steps, const AttentionShape& shape,
                       const std::vector<int64_t>& lengths, uint64_t seed) {
  const std::vector<Stored> sequences = RandomSequences(shape, lengths, 1);
  PagedRun run(shape, sequences, seed);
  run.RunAll(steps);
  for (size_t s = 0; s < sequences.size(); ++s) {
    ExpectOracle(shape, sequences[s], run.outputs()[s], NameOf(shape));
  }
}

void ExpectSameBits(const std::vector<std::vector<float>>& a,
                    const std::vector<std::vector<float>>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t s = 0; s < a.size(); ++s) {
    ASSERT_EQ(a[s].size(), b[s].size());
    EXPECT_EQ(std::memcmp(a[s].data(), b[s].data(), a[s].size() * sizeof(float)), 0)
        << what << ", sequence " << s;
  }
}

class CudaPagedAttentionTest : public CudaTest, public ::testing::WithParamInterface<DataType> {
 protected:
  AttentionShape Shape(int64_t head_size, int64_t num_kv_heads, int64_t group,
                       int64_t window = 0) const {
    return {GetParam(), num_kv_heads * group, num_kv_heads, head_size, 0.31f, window};
  }
};

// A chunk of a prompt followed by decoding, for head sizes of whole and partial chunks and one that
// needs few queries per tile.
TEST_P(CudaPagedAttentionTest, MatchesDoubleLoops) {
  for (const AttentionShape& shape :
       {Shape(2, 1, 1), Shape(64, 1, 2), Shape(80, 1, 3), Shape(128, 2, 7), Shape(130, 1, 2),
        Shape(256, 1, 5), Shape(258, 1, 3), Shape(512, 1, 1)}) {
    // More than one partition where that is not slow.
    const int64_t longest = shape.head_size == 64 ? 290 : 36;
    ExpectOracleAfter({{{0, 1}, {1, 37}, {2, longest - 2}}, {{1, 1}, {2, 1}}, {{2, 1}, {1, 2}}},
                      shape, {1, 40, longest}, 1);
  }
}

// Groups that share a tile, fill it, and need several.
TEST_P(CudaPagedAttentionTest, GroupsOfAnySizeShareKeys) {
  for (int64_t group : {1, 3, 17, 40}) {
    ExpectOracleAfter({{{0, 7}, {1, 2}}, {{1, 1}, {0, 1}}}, Shape(16, 2, group), {8, 3}, 2);
  }
}

TEST_P(CudaPagedAttentionTest, WindowsHideOldKeys) {
  for (int64_t window : {1, 33, 257, 1000}) {
    std::vector<Step> steps(8, {{0, 1}});
    steps.front() = {{0, 280}};
    steps.back() = {{0, 4}};
    ExpectOracleAfter(steps, Shape(16, 1, 1, window), {290}, 3);
  }
}

// For head sizes with and without kernels of their own.
TEST_P(CudaPagedAttentionTest, BitsDoNotDependOnChunksBatchOrBlocks) {
  for (const AttentionShape& shape :
       {Shape(48, 1, 2, 265), Shape(64, 1, 7), Shape(128, 1, 2), Shape(264, 1, 1, 265)}) {
    const std::vector<Stored> sequences = RandomSequences(shape, {280, 50}, 1);
    PagedRun whole(shape, sequences, 4);
    whole.Run({{0, 280}, {1, 50}});
    PagedRun chunks(shape, sequences, 5);
    chunks.RunAll({{{1, 7}},
                   {{0, 253}},
                   {{1, 1}, {0, 3}},
                   {{0, 1}, {1, 2}},
                   {{0, 10}, {1, 39}},
                   {{1, 1}, {0, 4}},
                   {{0, 1}},
                   {{0, 8}}});
    ExpectSameBits(whole.outputs(), chunks.outputs(), NameOf(shape));
  }
}

// A NaN for one row is not a NaN for another, although they share tiles, pages and partitions.
TEST_P(CudaPagedAttentionTest, NanReachesThoseWhoSeeIt) {
  const AttentionShape shape = Shape(16, 2, 2, 40);
  const int64_t N = shape.num_heads, K = shape.num_kv_heads, D = shape.head_size;
  const int64_t group = N / K;
  const int64_t heads[] = {1, N, N + K + 1};  // a query head, a key head, a value head
  for (int64_t head : heads) {
    std::vector<Stored> sequences = RandomSequences(shape, {90}, 1);
    PutNan(&sequences[0], 33 * shape.RowSize() + head * D + 3);
    PagedRun whole(shape, sequences, 6), steps(shape, sequences, 7);
    whole.Run({{0, 90}});
    for (int i = 0; i < 90; ++i) steps.Run({{0, 1}});
    const int64_t num_nan = std::count_if(whole.outputs()[0].begin(), whole.outputs()[0].end(),
                                          [](float x) { return std::isnan(x); });
    // The head of one row; all elements of 40 rows in the heads of a group; one of these elements.
    EXPECT_EQ(num_nan, head < N ? D : head < N + K ? 40 * group * D : 40 * group);
    for (const PagedRun* run : {&whole, &steps}) {
      ExpectOracle(shape, sequences[0], run->outputs()[0], "head " + std::to_string(head));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaPagedAttentionTest,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16), NameOfType);

class PlanPagedTilesTest : public CudaTest {};

TEST_F(PlanPagedTilesTest, CoversEveryRowOnceAndSplitsShortOnes) {
  const std::vector<PagedSequence> sequences = {{0, 9, 100, nullptr},
                                                {9, 0, 5, nullptr},
                                                {9, 1, 700, nullptr},
                                                {10, 4, 0, nullptr},
                                                {14, 5, 3, nullptr}};
  const PagedTiles plan = PlanPagedTiles(sequences.data(), 5, 8, 2, 64);  // 16 / 4 rows per tile
  EXPECT_EQ(plan.counts.num_tiles, 7);
  EXPECT_EQ(plan.counts.num_split, 2);
  EXPECT_EQ(plan.counts.max_split_rows, 4);
  EXPECT_EQ(plan.counts.max_split_positions, 701);
  EXPECT_EQ(plan.counts.num_partitions, 3 + 1);
  EXPECT_EQ(plan.tiles_I[0].first_partition, 0);
  EXPECT_EQ(plan.tiles_I[1].first_partition, 3);
  std::vector<int> seen(19);
  for (size_t i = 0; i < plan.tiles_I.size(); ++i) {
    const PagedTile& tile = plan.tiles_I[i];
    const PagedSequence& sequence = sequences[tile.sequence];
    EXPECT_EQ(tile.first_position - sequence.past_len, tile.first_row - sequence.first_row);
    EXPECT_LE(tile.num_rows, 4);
    EXPECT_EQ(i < 2, sequence.num_rows <= 4);
    for (int32_t row = 0; row < tile.num_rows; ++row) ++seen[tile.first_row + row];
  }
  EXPECT_EQ(seen, std::vector<int>(19, 1));
}

TEST_F(PlanPagedTilesTest, TheArraysNamePositionSequenceAndBlocksOfEachRow) {
  const std::vector<int32_t> tables = {7, 8, 4};
  const PagedStep step =
      LayOutPagedStep({{0, 3, 40, tables.data()}, {3, 1, 5, tables.data() + 2}}, 8, 2, 64);
  EXPECT_EQ(step.num_rows, 4);
  EXPECT_EQ(step.max_blocks, 2);
  const auto numbers = [&](int64_t first, int64_t num) {
    return std::vector<int32_t>(step.arrays.begin() + first, step.arrays.begin() + first + num);
  };
  EXPECT_EQ(numbers(0, 4), (std::vector<int32_t>{40, 41, 42, 5}));
  EXPECT_EQ(numbers(step.first_sequence, 4), (std::vector<int32_t>{0, 0, 0, 1}));
  EXPECT_EQ(numbers(step.first_table, 3), tables);
}

// One long sequence among many short ones must not cost as much as many long ones.
TEST_F(PlanPagedTilesTest, TheWorkspaceGrowsWithTheSumOfTheLengths) {
  const auto bytes = [](const std::vector<PagedSequence>& sequences, int64_t window) {
    const PagedTiles plan =
        PlanPagedTiles(sequences.data(), static_cast<int64_t>(sequences.size()), 8, 2, 64);
    PlainPagedAttention p;
    p.pages.num_kv_heads = 2;
    p.pages.head_size = 64;
    p.num_heads = 8;
    p.sliding_window = window;
    p.counts = plan.counts;
    return PagedAttentionWorkspaceBytes(p);
  };
  std::vector<PagedSequence> sequences;
  for (int64_t i = 0; i < 256; ++i) sequences.push_back({i, 1, 200, nullptr});
  const int64_t per_partition = 8 * (64 + 2) * 4;
  EXPECT_EQ(bytes(sequences, 0), 256 * per_partition);
  sequences[7].past_len = 131071;
  EXPECT_EQ(bytes(sequences, 0), (255 + 512) * per_partition);
  EXPECT_EQ(bytes(sequences, 300), 256 * 3 * per_partition);
}

TEST_F(CudaTest, PagedAttentionNamesWrongArguments) {
  DeviceArray<float> memory(64);
  DeviceArray<PagedTile> tiles(std::vector<PagedTile>{{0, 0, 1, 300}});
  DeviceArray<int32_t> table(std::vector<int32_t>(10));
  PlainPagedAttention p;
  p.pages = {DataType::kFloat32, 2, 8, memory.data(), memory.data()};
  p.num_heads = 4;
  p.scale = 1;
  p.counts = {1, 1, 1, 301, 2};
  p.tiles_I = tiles.data();
  p.block_tables_SM = table.data();
  p.max_blocks = 10;
  p.q_TND = p.out_TND = memory.data();
  EXPECT_EQ(PagedAttentionWorkspaceBytes(p), 2 * 2 * 2 * (8 + 2) * 4);
  EXPECT_EQ(PagedAttentionCuda(p, {}), "the workspace has 0 bytes, 320 are needed");
  const auto expect = [&](const std::string& message, auto change) {
    PlainPagedAttention wrong = p;
    change(&wrong);
    EXPECT_EQ(PagedAttentionCuda(wrong, {}), message);
  };
  using Problem = PlainPagedAttention*;
  expect("head_size is 7, must be even and in [2, 512]", [](Problem x) { x->pages.head_size = 7; });
  expect("num_heads is 5, must be a positive multiple of num_kv_heads 2",
         [](Problem x) { x->num_heads = 5; });
  expect("keys and values must be aligned to 16 bytes",
         [&](Problem x) { x->pages.keys_BKPD = memory.data() + 1; });
  expect("scale is 0, must be positive", [](Problem x) { x->scale = 0; });
  expect("max_split_blocks is 0, must be positive", [](Problem x) { x->max_split_blocks = 0; });
  expect("sliding_window is -1, must not be negative", [](Problem x) { x->sliding_window = -1; });
  expect("counts are not PlanPagedTiles' for these heads",
         [](Problem x) { x->counts.num_split = 2; });
  expect("counts are not PlanPagedTiles' for these heads",
         [](Problem x) { x->counts.max_split_rows = 9; });
  expect("counts are not PlanPagedTiles' for these heads",
         [](Problem x) { x->counts.num_partitions = 0; });
  expect("tiles, block_tables, q and out are needed", [](Problem x) { x->q_TND = nullptr; });
}

}  // namespace
}  // namespace taopd::testing
