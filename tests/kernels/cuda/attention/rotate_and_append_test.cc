// Norm, rotation and the write to plain pages on CUDA against double loops.
#include <cuda_bf16.h>

#include <array>
#include <cmath>
#include <string>

#include "taopd/attention/paged_attention_cuda.h"
#include "taopd/layers/norms_and_swiglu.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/layer_problem.h"

namespace taopd::testing {
namespace {

// The roundings to bfloat16 of the norm, of its product, of x cos and of the sum.
double ToleranceOf(DataType type) { return type == DataType::kFloat32 ? 1e-5 : 0.02; }

constexpr float kEps = 1e-3f;
constexpr int64_t kBlocks = 5, kMaxBlocks = 2;

struct RotateCase {
  int64_t num_heads, num_kv_heads, head_size;
  bool has_norm, has_rotation;
};

// Three rows of two sequences: in the middle, at the end and at the start of a block.
const std::vector<int32_t> kPositions = {5, 31, 32};
const std::vector<int32_t> kSequences = {1, 0, 0};
const std::vector<int32_t> kTables = {3, 0, 4, 2};
constexpr int64_t kRows = 3;
// The blocks of the rows, and the places in them.
constexpr int64_t kBlockOfRow[kRows] = {4, 3, 0};
constexpr int64_t kPlaceOfRow[kRows] = {5, 31, 0};

class RotateAndAppendTest : public CudaTest, public ::testing::WithParamInterface<DataType> {
 protected:
  // Returns a head of x after norm and rotation.
  std::vector<double> Ready(const RotateCase& c, const float* x, const Stored& norm,
                            int64_t row) const {
    const int64_t D = c.head_size, half = D / 2;
    const std::vector<float> weight = norm.Values(), cos = cos_.Values(), sin = sin_.Values();
    std::vector<double> normed(x, x + D), out;
    double squares = 0;
    for (double value : normed) squares += value * value;
    for (int64_t d = 0; d < D && c.has_norm; ++d) {
      normed[d] *= weight[d] / std::sqrt(squares / static_cast<double>(D) + kEps);
    }
    if (!c.has_rotation) return normed;
    for (int64_t d = 0; d < D; ++d) {
      const int64_t other = d < half ? d + half : d - half;
      out.push_back(normed[d] * cos[row * D + d] + normed[other] * sin[row * D + d]);
    }
    return out;
  }
  void Expect(const std::vector<double>& expected, const float* ours, const std::string& what) {
    for (size_t d = 0; d < expected.size(); ++d) {
      ASSERT_NEAR(ours[d], expected[d], ToleranceOf(GetParam()) * (1 + std::abs(expected[d])))
          << what << ", element " << d;
    }
  }
  void Compute(const RotateCase& c);
  void Check(const RotateCase& c);

  static constexpr int64_t kPadding = 6;
  Stored qkv_, q_norm_, k_norm_, cos_, sin_;  // in
  Stored q_out_, keys_, values_;              // out
};

void RotateAndAppendTest::Compute(const RotateCase& c) {
  const DataType type = GetParam();
  const int64_t N = c.num_heads, K = c.num_kv_heads, D = c.head_size, element = SizeOf(type);
  const int64_t stride = (N + 2 * K) * D + kPadding;
  qkv_ = Normal(type, kRows * stride, 1, 2);
  q_norm_ = Normal(type, D, 2, 0.3f, 1), k_norm_ = Normal(type, D, 3, 0.3f, 1);
  cos_ = Normal(type, kRows * D, 4), sin_ = Normal(type, kRows * D, 5);
  const std::vector<uint8_t> pool(kBlocks * K * kBlockTokens * D * element, 0xff);
  DeviceArray<uint8_t> qkv(qkv_.bytes), q_norm(q_norm_.bytes), k_norm(k_norm_.bytes),
      cos(cos_.bytes), sin(sin_.bytes), keys(pool), values(pool),
      q_out(std::vector<uint8_t>(kRows * (N * D + kPadding) * element, 0xff));
  DeviceArray<int32_t> positions(kPositions), sequences(kSequences), tables(kTables);
  RotateAndAppend p = {.pages = {type, K, D, keys.data(), values.data()},
                       .num_rows = kRows,
                       .num_heads = N,
                       .positions_T = positions.data(),
                       .sequences_T = sequences.data(),
                       .block_tables_SM = tables.data(),
                       .max_blocks = kMaxBlocks,
                       .q_TND = qkv.data(),
                       .k_TKD = qkv.data() + N * D * element,
                       .v_TKD = qkv.data() + (N + K) * D * element};
  p.q_row_stride = p.k_row_stride = p.v_row_stride = stride;
  p.q_norm_D = c.has_norm ? q_norm.data() : nullptr;
  p.k_norm_D = c.has_norm ? k_norm.data() : nullptr;
  p.eps = kEps;
  p.cos_TD = c.has_rotation ? cos.data() : nullptr;
  p.sin_TD = c.has_rotation ? sin.data() : nullptr;
  p.q_out_TND = q_out.data();
  p.q_out_row_stride = N * D + kPadding;
  ASSERT_EQ(RotateAndAppendCuda(p, {}), "");
  q_out_ = {type, q_out.Values()};
  keys_ = {type, keys.Values()};
  values_ = {type, values.Values()};
}

void RotateAndAppendTest::Check(const RotateCase& c) {
  const int64_t N = c.num_heads, K = c.num_kv_heads, D = c.head_size;
  const std::vector<float> qkv = qkv_.Values(), q_out = q_out_.Values(), keys = keys_.Values(),
                           values = values_.Values();
  std::vector<bool> written(keys.size());
  for (int64_t row = 0; row < kRows; ++row) {
    const float* from = &qkv[row * ((N + 2 * K) * D + kPadding)];
    for (int64_t n = 0; n < N; ++n) {
      Expect(Ready(c, from + n * D, q_norm_, row), &q_out[row * (N * D + kPadding) + n * D],
             "query " + std::to_string(row) + " " + std::to_string(n));
    }
    for (int64_t k = 0; k < K; ++k) {
      const int64_t place = ((kBlockOfRow[row] * K + k) * kBlockTokens + kPlaceOfRow[row]) * D;
      const std::string what = std::to_string(row) + " " + std::to_string(k);
      Expect(Ready(c, from + (N + k) * D, k_norm_, row), &keys[place], "key " + what);
      for (int64_t d = 0; d < D; ++d) {
        ASSERT_EQ(values[place + d], from[(N + K + k) * D + d]) << "value " << what;
        written[place + d] = true;
      }
    }
    for (int64_t i = 0; i < kPadding; ++i) {
      EXPECT_TRUE(std::isnan(q_out[row * (N * D + kPadding) + N * D + i]));
    }
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(std::isnan(keys[i]), !written[i]) << "key element " << i;
    ASSERT_EQ(std::isnan(values[i]), !written[i]) << "value element " << i;
  }
}

TEST_P(RotateAndAppendTest, MatchesDoubleLoops) {
  for (const auto& [num_heads, num_kv_heads, head_size] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 2}, {4, 2, 64}, {3, 3, 130}, {2, 1, 512}}) {
    for (bool has_norm : {false, true}) {
      for (bool has_rotation : {false, true}) {
        const RotateCase c = {num_heads, num_kv_heads, head_size, has_norm, has_rotation};
        Compute(c);
        Check(c);
      }
    }
  }
}

// bfloat16 results have the roundings of transformers' modules, which
// taopd/layers/norms_and_swiglu.h lists. A float32 number near the middle between two bfloat16
// numbers may go either way.
TEST_P(RotateAndAppendTest, RoundsWhereModulesDo) {
  if (GetParam() == DataType::kFloat32) GTEST_SKIP() << "float32 is not rounded on the way";
  const RotateCase c = {1, 1, 512, true, true};
  Compute(c);
  const int64_t D = c.head_size, half = D / 2;
  const std::vector<float> x = qkv_.Values(), weight = k_norm_.Values(), cos = cos_.Values(),
                           sin = sin_.Values(), keys = keys_.Values();
  const auto round = [](double value) {
    return static_cast<double>(__bfloat162float(__float2bfloat16(static_cast<float>(value))));
  };
  int64_t num_equal = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    const float* from = &x[row * (3 * D + kPadding) + D];
    double squares = 0;
    std::vector<double> normed;
    for (int64_t d = 0; d < D; ++d) squares += static_cast<double>(from[d]) * from[d];
    for (int64_t d = 0; d < D; ++d) {
      normed.push_back(
          round(round(from[d] / std::sqrt(squares / static_cast<double>(D) + kEps)) * weight[d]));
    }
    const float* ours = &keys[(kBlockOfRow[row] * kBlockTokens + kPlaceOfRow[row]) * D];
    for (int64_t d = 0; d < D; ++d) {
      const int64_t other = d < half ? d + half : d - half;
      num_equal +=
          ours[d] == round(round(normed[d] * cos[row * D + d]) + normed[other] * sin[row * D + d]);
    }
  }
  EXPECT_GE(num_equal, kRows * D * 99 / 100);
}

// Training and inference must not round differently.
TEST_P(RotateAndAppendTest, QueriesHaveTheBitsOfHeadsForward) {
  const RotateCase c = {1, 1, 128, true, true};
  Compute(c);
  const int64_t D = c.head_size, element = SizeOf(GetParam());
  const int64_t stride = 3 * D + kPadding;
  std::vector<uint8_t> x;
  for (int64_t row = 0; row < kRows; ++row) {
    const auto from = qkv_.bytes.begin() + row * stride * element;
    x.insert(x.end(), from, from + D * element);
  }
  DeviceArray<uint8_t> x_on_device(x), weight(q_norm_.bytes), cos(cos_.bytes), sin(sin_.bytes),
      out(static_cast<int64_t>(x.size()));
  ASSERT_EQ(HeadsForwardCuda({GetParam(), kRows, 1, D, kEps, x_on_device.data(), weight.data(),
                              cos.data(), sin.data(), out.data(), nullptr},
                             {}),
            "");
  const std::vector<uint8_t> expected = out.Values();
  for (int64_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(std::memcmp(&expected[row * D * element],
                          &q_out_.bytes[row * (D + kPadding) * element], D * element),
              0)
        << "row " << row;
  }
}

TEST_P(RotateAndAppendTest, WithoutQueriesOnlyPagesAreWritten) {
  const Stored host = Normal(GetParam(), 64, 1);
  DeviceArray<uint8_t> x(host.bytes), keys(int64_t{kBlockTokens * 32 * 4}),
      values(int64_t{kBlockTokens * 32 * 4});
  DeviceArray<int32_t> position(std::vector<int32_t>{3}), zero(std::vector<int32_t>{0});
  RotateAndAppend p = {.pages = {GetParam(), 1, 32, keys.data(), values.data()},
                       .num_rows = 1,
                       .num_heads = 4,
                       .positions_T = position.data()};
  p.sequences_T = p.block_tables_SM = zero.data();
  p.max_blocks = 1;
  p.k_TKD = p.v_TKD = x.data();
  ASSERT_EQ(RotateAndAppendCuda(p, {}), "");
  const int64_t bytes = 32 * SizeOf(GetParam());
  EXPECT_EQ(std::memcmp(keys.Values().data() + 3 * bytes, host.bytes.data(), bytes), 0);
  EXPECT_EQ(std::memcmp(values.Values().data() + 3 * bytes, host.bytes.data(), bytes), 0);

  p.q_TND = x.data();
  EXPECT_EQ(RotateAndAppendCuda(p, {}), "q and q_out are needed together");
  p.q_TND = nullptr;
  p.cos_TD = x.data();
  EXPECT_EQ(RotateAndAppendCuda(p, {}), "cos and sin are needed together");
  p.cos_TD = nullptr;
  p.v_TKD = nullptr;
  EXPECT_EQ(RotateAndAppendCuda(p, {}), "positions, sequences, block_tables, k and v are needed");
}

INSTANTIATE_TEST_SUITE_P(Types, RotateAndAppendTest,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16), NameOfType);

}  // namespace
}  // namespace taopd::testing
