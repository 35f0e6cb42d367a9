// The layers' arithmetic under finite differences, and the CPU's loops: the same bits from every
// instruction set and for any division into threads.
// tests/kernels/torch/layers/norms_and_swiglu_test.cc checks values against ATen.
#include "taopd/layers/norms_and_swiglu.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/layers/layer_loops.h"
#include "taopd/layers/adamw.h"
#include "taopd/layers/layer_math.h"
#include "tests/kernels/cpu/supported_sets.h"
#include "tests/kernels/layer_problem.h"
#include "tests/kernels/one_thread.h"

namespace taopd::cpu {
namespace {

using testing::HeadsArrays;
using testing::Normal;
using testing::OneThread;
using testing::RmsNormArrays;
using testing::Stored;
using testing::SupportedSets;
using testing::SwiGluArrays;

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBFloat16};

// Central differences with step 1e-5 in double: truncation 1e-10, rounding 1e-11, for numbers of
// size 1 to 10.
constexpr double kStep = 1e-5;
constexpr double kDifferenceTolerance = 1e-8;

std::vector<double> RandomDoubles(int64_t n, uint64_t seed) {
  const std::vector<float> floats = Normal(DataType::kFloat32, n, seed).Values();
  return {floats.begin(), floats.end()};
}

// Returns d f / d x_i by differences.
double Difference(std::vector<double> x, size_t i,
                  const std::function<double(const std::vector<double>&)>& f) {
  x[i] += kStep;
  const double above = f(x);
  x[i] -= 2 * kStep;
  return (above - f(x)) / (2 * kStep);
}

TEST(LayerLoops, NarrowRoundsToTheNearestAndTiesToEven) {
  const auto bits_of = [](float value) { return std::bit_cast<uint32_t>(value); };
  const auto wide = [](uint32_t bfloat16) { return std::bit_cast<float>(bfloat16 << 16); };
  std::vector<float> values = Normal(DataType::kFloat32, 1000, 4).Values();
  for (float special :
       {0.0f, -0.0f, INFINITY, -INFINITY, 3.4e38f, 1e-40f, -1.00390625f, 1.01171875f}) {
    values.push_back(special);  // the last two are between two bfloat16
  }
  for (InstructionSet set : SupportedSets()) {
    const LayerLoops& loops = LayerLoopsOf(set, DataType::kBFloat16);
    std::vector<uint16_t> narrow(values.size());
    loops.narrow(values.data(), static_cast<int64_t>(values.size()), narrow.data());
    for (size_t i = 0; i < values.size(); ++i) {
      // The neighbors: the next one towards zero, and the one after it.
      const uint32_t below = bits_of(values[i]) >> 16, above = below + 1;
      const double value = values[i];
      const bool overflows = !std::isfinite(wide(above));  // infinity takes the place of 2^128
      const double up =
          overflows ? std::ldexp(1.0, 128) - std::abs(value) : std::abs(wide(above) - value);
      const double down = std::abs(value - wide(below));
      const bool to_above = up < down || (up == down && below % 2 == 1);
      EXPECT_EQ(narrow[i], std::isinf(value) || !to_above ? below : above)
          << NameOf(set) << " " << value;
    }
    // A NaN whose set bits are all in the half that is dropped.
    const float nan = std::bit_cast<float>(0x7f800001u);
    loops.narrow(&nan, 1, narrow.data());
    EXPECT_TRUE(std::isnan(wide(narrow[0]))) << NameOf(set);
  }
}

TEST(LayerMath, RmsNormGradientEqualsDifferences) {
  for (size_t n : {1u, 2u, 7u, 40u}) {
    const std::vector<double> x = RandomDoubles(n, 1), weight = RandomDoubles(n, 2),
                              d_y = RandomDoubles(n, 3);
    const auto inverse_rms = [&](const std::vector<double>& v) {
      double squares = 0;
      for (double value : v) squares += value * value;
      return 1 / std::sqrt(squares / static_cast<double>(n) + 1e-3);
    };
    const auto loss = [&](const std::vector<double>& v) {
      double sum = 0;
      for (size_t i = 0; i < n; ++i) sum += d_y[i] * v[i] * inverse_rms(v) * weight[i];
      return sum;
    };
    const double r = inverse_rms(x);
    double mean = 0;
    for (size_t i = 0; i < n; ++i) mean += d_y[i] * weight[i] * x[i] * r / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
      double d_x = 0;
      RmsNormGradient(d_y[i], weight[i], x[i] * r, mean, r, &d_x);
      EXPECT_NEAR(d_x, Difference(x, i, loss), kDifferenceTolerance) << n << " " << i;
    }
  }
}

TEST(LayerMath, UnrotatePairEqualsDifferences) {
  const std::vector<double> x = {0.3, -1.2}, cos = {0.6, 0.5}, sin = {-0.8, 0.9}, d = {1.5, -0.7};
  const auto loss = [&](const std::vector<double>& v) {
    return d[0] * (v[0] * cos[0] + v[1] * sin[0]) + d[1] * (v[1] * cos[1] + v[0] * sin[1]);
  };
  double d_x[2];
  UnrotatePair(d[0], d[1], cos[0], cos[1], sin[0], sin[1], &d_x[0], &d_x[1]);
  for (size_t i : {0u, 1u}) EXPECT_NEAR(d_x[i], Difference(x, i, loss), kDifferenceTolerance);
}

TEST(LayerMath, SwiGluGradientEqualsDifferences) {
  for (double gate : {-30.0, -3.0, -0.1, 0.0, 0.7, 5.0, 40.0}) {
    const auto sigmoid = [](double g) { return 1 / (1 + std::exp(-g)); };
    const auto loss = [&](const std::vector<double>& v) {
      return 1.3 * v[0] * sigmoid(v[0]) * v[1];
    };
    double d_gate = 0, d_up = 0;
    SwiGluGradient(gate, -0.8, sigmoid(gate), 1.3, &d_gate, &d_up);
    // Sums of numbers of size 40 lose two digits.
    EXPECT_NEAR(d_gate, Difference({gate, -0.8}, 0, loss), 10 * kDifferenceTolerance) << gate;
    EXPECT_NEAR(d_up, Difference({gate, -0.8}, 1, loss), 10 * kDifferenceTolerance) << gate;
  }
}

// Processes one item at a time, the last one first: the largest possible number of threads.
const ParallelFor kBackwards = [](int64_t num, int64_t, const auto& body) {
  for (int64_t i = num; i-- > 0;) body(i, i + 1);
};

TEST(Layers, ThreadsDoNotChangeABit) {
  for (DataType type : kTypes) {
    for (int64_t num_rows : {0, 1, 31, 32, 33, 100}) {
      for (bool optional : {false, true}) {
        RmsNormArrays norm[2] = {{type, num_rows, 50, optional}, {type, num_rows, 50, optional}};
        HeadsArrays heads[2] = {{type, num_rows, 3, 12, optional},
                                {type, num_rows, 3, 12, optional}};
        SwiGluArrays swiglu[2] = {{type, num_rows}, {type, num_rows}};
        for (int i : {0, 1}) {
          const ParallelFor& parallel_for = i == 0 ? OneThread : kBackwards;
          cpu::NormalizeRows(norm[i].Forward(), parallel_for);
          cpu::NormalizeRowsBackward(norm[i].Backward(), parallel_for);
          cpu::RotateHeads(heads[i].Forward(), parallel_for);
          cpu::RotateHeadsBackward(heads[i].Backward(), parallel_for);
          cpu::ComputeSwiGlu(swiglu[i].Forward(), parallel_for);
          cpu::ComputeSwiGluBackward(swiglu[i].Backward(), parallel_for);
        }
        EXPECT_EQ(norm[0].normed.bytes, norm[1].normed.bytes);
        EXPECT_EQ(norm[0].sum.bytes, norm[1].sum.bytes);
        EXPECT_EQ(norm[0].d_x.bytes, norm[1].d_x.bytes);
        EXPECT_EQ(norm[0].d_weight.bytes, norm[1].d_weight.bytes);
        EXPECT_EQ(heads[0].out.bytes, heads[1].out.bytes);
        EXPECT_EQ(heads[0].d_x.bytes, heads[1].d_x.bytes);
        EXPECT_EQ(heads[0].d_weight.bytes, heads[1].d_weight.bytes);
        EXPECT_EQ(swiglu[0].y.bytes, swiglu[1].y.bytes);
        EXPECT_EQ(swiglu[0].d_gate.bytes, swiglu[1].d_gate.bytes);
        EXPECT_EQ(swiglu[0].d_up.bytes, swiglu[1].d_up.bytes);
      }
    }
  }
}

// Runs all loops of one set on rows of n elements, one after the other.
std::vector<uint8_t> AllLoops(InstructionSet set, DataType type, int64_t n) {
  const LayerLoops& loops = LayerLoopsOf(set, type);
  RmsNormArrays norm(type, 1, n, true);
  SwiGluArrays swiglu(type, n);
  HeadsArrays heads(type, 1, 1, 2 * n, true);
  Stored master = Normal(DataType::kFloat32, n, 7), exp_avg = Normal(DataType::kFloat32, n, 8),
         exp_avg_sq = Normal(DataType::kFloat32, n, 9, 0.1f, 1),
         rounded = testing::Empty(DataType::kBFloat16, n);
  std::vector<uint8_t> result;
  const auto append = [&](const void* data, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    result.insert(result.end(), bytes, bytes + size);
  };
  const float r = loops.rms_norm(norm.x.In(), norm.added.In(), norm.weight.In(), n, 1e-6f,
                                 norm.sum.Out(), norm.normed.Out());
  loops.rms_norm_backward(norm.sum.In(), norm.weight.In(), r, norm.d_normed.In(), norm.d_sum.In(),
                          n, norm.d_x.Out(), norm.partials.data());
  const float head_r = loops.rotate(heads.x.In(), heads.weight.In(), heads.cos.In(), heads.sin.In(),
                                    2 * n, 1e-6f, heads.out.Out());
  std::vector<float> scratch(2 * n);
  loops.rotate_backward(heads.x.In(), heads.weight.In(), head_r, heads.cos.In(), heads.sin.In(),
                        heads.d_out.In(), 2 * n, heads.d_x.Out(), scratch.data(),
                        heads.partials.data());
  loops.swiglu(swiglu.gate.In(), swiglu.up.In(), n, swiglu.y.Out());
  loops.swiglu_backward(swiglu.gate.In(), swiglu.up.In(), swiglu.d_y.In(), n, swiglu.d_gate.Out(),
                        swiglu.d_up.Out());
  const double squares = loops.sum_of_squares(norm.x.In(), n);
  const auto factors = MakeAdamWFactors<float>({1e-3, 0.9, 0.98, 1e-8, 3, 0.7});
  AdamWElements elements = {.size = n,
                            .gradient = norm.x.In(),
                            .master = static_cast<float*>(master.Out()),
                            .exp_avg = exp_avg.Out(),
                            .exp_avg_sq = exp_avg_sq.Out(),
                            .bfloat16 = static_cast<uint16_t*>(rounded.Out())};
  loops.adamw(factors, 0.999f, elements);
  Stored narrow_avg = Normal(DataType::kBFloat16, n, 10),
         narrow_avg_sq = Normal(DataType::kBFloat16, n, 11, 0.01f, 1);
  elements.exp_avg = narrow_avg.Out();
  elements.exp_avg_sq = narrow_avg_sq.Out();
  elements.bfloat16_moments = true;
  elements.random_key = AdamWRandomKey(3, 1);
  elements.first_element = 0xfffffff0u;
  loops.adamw(factors, 0.999f, elements);
  Stored alone = Normal(DataType::kBFloat16, n, 12);
  elements.master = nullptr;
  elements.bfloat16 = static_cast<uint16_t*>(alone.Out());
  elements.weight_key = AdamWWeightKey(3, 1);
  loops.adamw(factors, 0.999f, elements);
  append(&r, sizeof(r));
  append(&head_r, sizeof(head_r));
  append(&squares, sizeof(squares));
  append(norm.partials.data(), norm.partials.size() * 4);
  append(heads.partials.data(), heads.partials.size() * 4);
  for (const Stored* stored : {&norm.sum, &norm.normed, &norm.d_x, &heads.out, &heads.d_x,
                               &swiglu.y, &swiglu.d_gate, &swiglu.d_up, &master, &exp_avg,
                               &exp_avg_sq, &rounded, &narrow_avg, &narrow_avg_sq, &alone}) {
    append(stored->In(), stored->bytes.size());
  }
  return result;
}

TEST(LayerLoops, InstructionSetsAgreeBitForBit) {
  if (SupportedSets().size() == 1) GTEST_SKIP() << "this processor has one instruction set";
  for (DataType type : kTypes) {
    for (int64_t n : {1, 2, 7, 8, 15, 16, 17, 33, 64, 100, 1023, 1024, 1025, 3072}) {
      const std::vector<uint8_t> base = AllLoops(InstructionSet::kBase, type, n);
      for (InstructionSet set : SupportedSets()) {
        EXPECT_EQ(AllLoops(set, type, n), base) << NameOf(set) << " n " << n;
      }
    }
  }
}

TEST(LayerLoops, ExtremeGatesStayFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> gate = {-inf, -1e30f, -100, -87.4f, 0, 87.4f, 100, 1e30f};
  const std::vector<float> up(gate.size(), 1), d_y(gate.size(), 1);
  std::vector<float> y(gate.size()), d_gate(gate.size()), d_up(gate.size());
  const auto n = static_cast<int64_t>(gate.size());
  for (InstructionSet set : SupportedSets()) {
    const LayerLoops& loops = LayerLoopsOf(set, DataType::kFloat32);
    loops.swiglu(gate.data() + 1, up.data(), n - 1, y.data() + 1);
    loops.swiglu_backward(gate.data() + 1, up.data(), d_y.data(), n - 1, d_gate.data() + 1,
                          d_up.data() + 1);
    for (int64_t i = 1; i < n; ++i) {
      EXPECT_EQ(y[i], gate[i] > 0 ? gate[i] : 0) << gate[i];
      EXPECT_NEAR(d_gate[i], gate[i] > 0 ? 1 : gate[i] < 0 ? 0 : 0.5, 1e-6) << gate[i];
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    loops.swiglu(&nan, up.data(), 1, y.data());
    EXPECT_TRUE(std::isnan(y[0]));
  }
}

struct AdamWProblem {
  std::vector<Stored> gradient, master, exp_avg, exp_avg_sq, bfloat16;
  std::vector<AdamWTensor> tensors;

  explicit AdamWProblem(const std::vector<int64_t>& sizes) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const bool half = i % 2 == 1;
      gradient.push_back(Normal(half ? DataType::kBFloat16 : DataType::kFloat32, sizes[i], i));
      master.push_back(Normal(DataType::kFloat32, sizes[i], i + 100));
      exp_avg.push_back(Normal(DataType::kFloat32, sizes[i], i + 200, 0.1f));
      exp_avg_sq.push_back(Normal(DataType::kFloat32, sizes[i], i + 300, 0.01f, 1));
      bfloat16.push_back(testing::Empty(DataType::kBFloat16, half ? sizes[i] : 0));
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      AdamWTensor tensor = {.size = sizes[i],
                            .gradient_type = gradient[i].type,
                            .gradient = gradient[i].In(),
                            .master = static_cast<float*>(master[i].Out()),
                            .exp_avg = exp_avg[i].Out(),
                            .exp_avg_sq = exp_avg_sq[i].Out()};
      if (i % 2 == 1) tensor.bfloat16 = static_cast<uint16_t*>(bfloat16[i].Out());
      tensor.weight_decay = i % 3 == 0 ? 0.1f : 0.0f;
      tensors.push_back(tensor);
    }
    NumberBlocks(&tensors);
  }
};

// Tensors with no elements, with less than a block, and with several blocks, in both types.
const std::vector<int64_t> kTensorSizes = {
    0, 5, kAdamWBlock, 0, 0, kAdamWBlock + 1, 1, 3 * kAdamWBlock - 1, 17, 0};
constexpr AdamWSettings kSettings = {0.01, 0.9, 0.98, 1e-8, 4, 0.5};

TEST(AdamWLoops, ThreadsDoNotChangeABit) {
  AdamWProblem serial(kTensorSizes), backwards(kTensorSizes);
  EXPECT_EQ(SumOfSquares(serial.tensors, OneThread), SumOfSquares(backwards.tensors, kBackwards));
  AdamW(kSettings, serial.tensors, OneThread);
  AdamW(kSettings, backwards.tensors, kBackwards);
  for (size_t t = 0; t < kTensorSizes.size(); ++t) {
    EXPECT_EQ(serial.master[t].bytes, backwards.master[t].bytes);
    EXPECT_EQ(serial.exp_avg[t].bytes, backwards.exp_avg[t].bytes);
    EXPECT_EQ(serial.exp_avg_sq[t].bytes, backwards.exp_avg_sq[t].bytes);
    EXPECT_EQ(serial.bfloat16[t].bytes, backwards.bfloat16[t].bytes);
  }
}

// Each element has its own rounding bits: however it is cut, a parameter gives the same moments.
TEST(AdamWLoops, Bfloat16MomentsDoNotDependOnHowAParameterIsCut) {
  constexpr int64_t kSize = 2 * kAdamWBlock + 77;
  const auto run = [&](const std::vector<int64_t>& cuts, int64_t parameter, int64_t step) {
    Stored gradient = Normal(DataType::kFloat32, kSize, 1),
           master = Normal(DataType::kFloat32, kSize, 2);
    Stored exp_avg = Normal(DataType::kBFloat16, kSize, 3),
           exp_avg_sq = Normal(DataType::kBFloat16, kSize, 4, 0.01f, 1);
    std::vector<AdamWTensor> tensors;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const AdamWTensor tensor = {.size = cuts[i + 1] - cuts[i],
                                  .gradient = static_cast<const float*>(gradient.In()) + cuts[i],
                                  .master = static_cast<float*>(master.Out()) + cuts[i],
                                  .exp_avg = static_cast<uint16_t*>(exp_avg.Out()) + cuts[i],
                                  .exp_avg_sq = static_cast<uint16_t*>(exp_avg_sq.Out()) + cuts[i],
                                  .moments_type = DataType::kBFloat16,
                                  .parameter = parameter,
                                  .first_element = cuts[i]};
      tensors.push_back(tensor);
    }
    NumberBlocks(&tensors);
    AdamWSettings settings = kSettings;
    settings.step = step;
    AdamW(settings, tensors, kBackwards);
    std::vector<uint8_t> bytes = exp_avg.bytes;
    bytes.insert(bytes.end(), exp_avg_sq.bytes.begin(), exp_avg_sq.bytes.end());
    return bytes;
  };
  const auto whole = run({0, kSize}, 5, 4);
  EXPECT_EQ(run({0, 1, 1000, kAdamWBlock + 3, kSize}, 5, 4), whole);
  EXPECT_NE(run({0, kSize}, 6, 4), whole);
  EXPECT_NE(run({0, kSize}, 5, 5), whole);
}

}  // namespace
}  // namespace taopd::cpu
