// The arrays of a decode step in a form that can be recorded (LayOutDecodeStep): the launches of
// one step, repeated with the arrays of another, give the bits of that step's own launches and
// write to the same places.
#include <cstring>
#include <numeric>
#include <random>

#include "taopd/attention/paged_attention_cuda.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/layer_problem.h"

namespace taopd::testing {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadSize = 16;  // N, K, D
constexpr int64_t kMaxLen = 700;                             // 3 partitions, 22 blocks
constexpr int64_t kNumBlocks = 64;                           // the last one is the scratch block
constexpr int64_t kRowSize = (kHeads + 2 * kKvHeads) * kHeadSize;

struct Setting {
  DataType type;
  int64_t sliding_window;
};

// The launches of a step as a graph records them, with all arguments by value.
struct Launches {
  RotateAndAppend append;
  PlainPagedAttention attention;
  DeviceContext context;
};

class DecodeStepTest : public CudaTest, public ::testing::WithParamInterface<Setting> {
 protected:
  // Returns sequences of these lengths, each including the row to come, in their own blocks.
  std::vector<PagedSequence> Sequences(const std::vector<int64_t>& lengths, uint64_t seed) {
    std::vector<int32_t> free_blocks(kNumBlocks - 1);
    std::iota(free_blocks.begin(), free_blocks.end(), 0);
    std::shuffle(free_blocks.begin(), free_blocks.end(), std::mt19937_64(seed));
    tables_.clear();
    std::vector<PagedSequence> sequences;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const auto num = static_cast<size_t>(KvBlocksFor(lengths[s]));
      tables_.emplace_back(free_blocks.end() - static_cast<int64_t>(num), free_blocks.end());
      free_blocks.resize(free_blocks.size() - num);
    }
    for (size_t s = 0; s < lengths.size(); ++s) {
      sequences.push_back({static_cast<int64_t>(s), 1, lengths[s] - 1, tables_[s].data()});
    }
    return sequences;
  }
  // Returns the same sequences followed by rows that write to the scratch block.
  static std::vector<PagedSequence> Padded(std::vector<PagedSequence> sequences, int64_t size) {
    static const std::vector<int32_t> table(1, kNumBlocks - 1);
    while (static_cast<int64_t>(sequences.size()) < size) {
      const auto row = static_cast<int64_t>(sequences.size());
      sequences.push_back({row, 1, 2 * (size - row - 1), table.data()});
    }
    return sequences;
  }

  DataType type() const { return GetParam().type; }
  int64_t PoolSize() const { return kNumBlocks * kKvHeads * kBlockTokens * kHeadSize; }
  // Returns the contents that earlier steps wrote; the scratch block contains NaNs.
  std::vector<uint8_t> Pool(uint64_t seed) const {
    std::vector<uint8_t> bytes = Normal(type(), PoolSize(), seed).bytes;
    std::fill(bytes.end() - static_cast<int64_t>(bytes.size()) / kNumBlocks, bytes.end(), 0xff);
    return bytes;
  }
  // Returns queries, keys and values of rows; those of padding are NaNs.
  std::vector<uint8_t> Rows(int64_t num_rows, int64_t size, uint64_t seed) const {
    std::vector<uint8_t> bytes = Normal(type(), num_rows * kRowSize, seed).bytes;
    bytes.resize(static_cast<size_t>(size * kRowSize * SizeOf(type())), 0xff);
    return bytes;
  }

  Launches Record(const PagedStep& step, int32_t* arrays, uint8_t* qkv, uint8_t* ready,
                  uint8_t* out, uint8_t* keys, uint8_t* values) const {
    const int64_t element = SizeOf(type());
    Launches launches;
    RotateAndAppend& append = launches.append;
    append.pages = {type(), kKvHeads, kHeadSize, keys, values};
    append.num_rows = step.num_rows;
    append.num_heads = kHeads;
    append.positions_T = arrays;
    append.sequences_T = arrays + step.first_sequence;
    append.block_tables_SM = arrays + step.first_table;
    append.max_blocks = step.max_blocks;
    append.q_TND = qkv;
    append.k_TKD = qkv + kHeads * kHeadSize * element;
    append.v_TKD = qkv + (kHeads + kKvHeads) * kHeadSize * element;
    append.q_row_stride = append.k_row_stride = append.v_row_stride = kRowSize;
    append.q_out_TND = ready;
    append.q_out_row_stride = kHeads * kHeadSize;
    PlainPagedAttention& attention = launches.attention;
    attention.pages = append.pages;
    attention.num_heads = kHeads;
    attention.scale = 0.3f;
    attention.sliding_window = GetParam().sliding_window;
    attention.counts = step.counts;
    attention.tiles_I = reinterpret_cast<const PagedTile*>(arrays + step.first_tile);
    attention.block_tables_SM = append.block_tables_SM;
    attention.max_blocks = step.max_blocks;
    attention.q_TND = ready;
    attention.q_row_stride = kHeads * kHeadSize;
    attention.out_TND = out;
    attention.out_row_stride = kHeads * kHeadSize;
    launches.context.workspace_bytes = PagedAttentionWorkspaceBytes(attention);
    return launches;
  }
  static void Run(Launches launches) {
    DeviceArray<uint8_t> workspace(
        std::vector<uint8_t>(static_cast<size_t>(launches.context.workspace_bytes), 0xff));
    launches.context.workspace = workspace.data();
    ASSERT_EQ(RotateAndAppendCuda(launches.append, launches.context), "");
    ASSERT_EQ(PagedAttentionCuda(launches.attention, launches.context), "");
  }

  struct Result {
    std::vector<uint8_t> out, keys, values;
  };
  // Runs a step on its own, laid out only for these sequences.
  Result RunAlone(const std::vector<PagedSequence>& sequences, uint64_t seed) const {
    const PagedStep step = LayOutPagedStep(sequences, kHeads, kKvHeads, kHeadSize);
    DeviceArray<int32_t> arrays(step.arrays);
    DeviceArray<uint8_t> qkv(Rows(step.num_rows, step.num_rows, seed)), keys(Pool(seed + 1)),
        values(Pool(seed + 2));
    const std::vector<uint8_t> rows(
        static_cast<size_t>(step.num_rows * kHeads * kHeadSize * SizeOf(type())), 0xff);
    DeviceArray<uint8_t> ready(rows), out(rows);
    Run(Record(step, arrays.data(), qkv.data(), ready.data(), out.data(), keys.data(),
               values.data()));
    return {out.Values(), keys.Values(), values.Values()};
  }

  std::vector<std::vector<int32_t>> tables_;
};

TEST_P(DecodeStepTest, OnlyTheValuesOfTheArraysDependOnTheSequences) {
  const auto layout = [&](const std::vector<int64_t>& lengths) {
    return LayOutDecodeStep(Sequences(lengths, 1), kMaxLen, kHeads, kKvHeads, kHeadSize);
  };
  const PagedStep a = layout({1, 2, 3}), b = layout({kMaxLen, 300, 256});
  EXPECT_EQ(a.num_rows, 3);
  EXPECT_EQ(a.max_blocks, 22);
  for (const auto member :
       {&PagedStep::num_rows, &PagedStep::max_blocks, &PagedStep::first_sequence,
        &PagedStep::first_table, &PagedStep::first_tile}) {
    EXPECT_EQ(a.*member, b.*member);
  }
  EXPECT_EQ(a.arrays.size(), b.arrays.size());
  for (const auto member :
       {&PagedTileCounts::num_tiles, &PagedTileCounts::num_split, &PagedTileCounts::max_split_rows,
        &PagedTileCounts::max_split_positions, &PagedTileCounts::num_partitions}) {
    EXPECT_EQ(a.counts.*member, b.counts.*member);
  }
}

TEST_P(DecodeStepTest, LaunchesOfOneStepServeOthers) {
  constexpr int64_t kSize = 8;
  // Recorded with only padding rows, as at the start.
  const PagedStep first = LayOutDecodeStep(Padded({}, kSize), kMaxLen, kHeads, kKvHeads, kHeadSize);
  std::vector<std::vector<int64_t>> steps = {
      {1, 33, 700, 256, 257, 12, 512, 64}, {700}, {32, 31, 513}, {5, 255, 290, 17, 40, 2, 90}};
  for (size_t i = 0; i < steps.size(); ++i) {
    const uint64_t seed = 10 * (i + 1);
    const std::vector<PagedSequence> sequences = Sequences(steps[i], seed);
    const auto num = static_cast<int64_t>(sequences.size());
    const Result expected = RunAlone(sequences, seed);

    const PagedStep step =
        LayOutDecodeStep(Padded(sequences, kSize), kMaxLen, kHeads, kKvHeads, kHeadSize);
    ASSERT_EQ(step.arrays.size(), first.arrays.size());
    DeviceArray<int32_t> arrays(step.arrays);
    DeviceArray<uint8_t> qkv(Rows(num, kSize, seed)), keys(Pool(seed + 1)), values(Pool(seed + 2));
    const std::vector<uint8_t> rows(
        static_cast<size_t>(kSize * kHeads * kHeadSize * SizeOf(type())), 0xff);
    DeviceArray<uint8_t> ready(rows), out(rows);
    // The arguments are those of the first step; only the addresses are this step's.
    Launches recorded = Record(first, arrays.data(), qkv.data(), ready.data(), out.data(),
                               keys.data(), values.data());
    // One, two and three blocks of threads for the three partitions of a sequence and head.
    recorded.attention.max_split_blocks = (static_cast<int64_t>(i) + 1) * kSize * kKvHeads;
    Run(recorded);
    const std::vector<uint8_t> outputs = out.Values();
    EXPECT_EQ(std::memcmp(outputs.data(), expected.out.data(), expected.out.size()), 0)
        << "step " << i;
    // Every block except the scratch block.
    const size_t live = expected.keys.size() / kNumBlocks * (kNumBlocks - 1);
    EXPECT_EQ(std::memcmp(keys.Values().data(), expected.keys.data(), live), 0) << "step " << i;
    EXPECT_EQ(std::memcmp(values.Values().data(), expected.values.data(), live), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, DecodeStepTest,
    ::testing::Values(Setting{DataType::kFloat32, 0}, Setting{DataType::kFloat32, 300},
                      Setting{DataType::kBFloat16, 0}, Setting{DataType::kBFloat16, 40}),
    [](const auto& info) {
      return std::string(info.param.type == DataType::kFloat32 ? "float32_" : "bfloat16_") +
             std::to_string(info.param.sliding_window);
    });

}  // namespace
}  // namespace taopd::testing
