// The loops of the set "base" give the same bits on every architecture: their digests are compared
// with golden/base_digests.txt, which an x86-64 processor has written. Inputs and digests use
// nothing whose last bits depend on a C library.
#include "kernels/cpu/isa/isa.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/attention/causal/causal_rows.h"
#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/cpu/gemm/panel_gemm.h"
#include "kernels/cpu/gemm/panel_packing.h"
#include "kernels/cpu/layers/layer_loops.h"
#include "kernels/cpu/math/row_math.h"
#include "kernels/cpu/math/weight_row.h"
#include "tests/kernels/cpu/attention/attention_batch.h"
#include "tests/kernels/cpu/normal_floats.h"
#include "tests/kernels/one_thread.h"

namespace taopd::cpu {
namespace {

constexpr InstructionSet kSet = InstructionSet::kBase;
// A length that is no multiple of any vector, block or tile.
constexpr int64_t kNum = 2077;

// FNV-1a over the bytes of results.
class Digest {
 public:
  template <typename T>
  Digest& Add(const std::vector<T>& values) {
    return AddBytes(values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  Digest& AddValue(const T& value) {
    return AddBytes(&value, sizeof(value));
  }
  std::string text() const {
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash_));
    return text;
  }

 private:
  Digest& AddBytes(const void* data, size_t num) {
    for (size_t i = 0; i < num; ++i) {
      hash_ = (hash_ ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
    }
    return *this;
  }

  uint64_t hash_ = 0xcbf29ce484222325u;
};

// Numbers in [-4, 4), exact whatever the standard library is.
std::vector<float> Floats(int64_t num, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(num);
  for (float& value : values) {
    value = static_cast<float>(static_cast<int32_t>(random() >> 40) - (1 << 23)) * 0x1p-21f;
  }
  return values;
}

std::vector<Bfloat16Bits> Bfloats(int64_t num, uint64_t seed) {
  std::vector<Bfloat16Bits> bits;
  for (float value : Floats(num, seed)) bits.push_back(testing::UpperHalf(value));
  return bits;
}

std::string RowMathDigest() {
  const RowMath& math = RowMathOf(kSet);
  std::vector<float> z = Floats(kNum, 1);
  z[5] = z[1999] = -std::numeric_limits<float>::infinity();
  std::vector<float> tiles((kNum + kTileSize - 1) / kTileSize);
  math.tile_max(z.data(), kNum, tiles.data());
  const ExpSums sums = math.sum_exp(z.data(), kNum, 4.0f, 0.7f);
  Digest digest;
  digest.Add(tiles).AddValue(math.max(z.data(), kNum)).AddValue(sums.sum_exp);
  digest.AddValue(sums.sum_exp_x).AddValue(math.count_at_least(z.data(), kNum, 1.5f));

  constexpr int64_t kColumns = 13, kStride = 16, kRows = 129;
  const std::vector<float> block = Floats(kRows * kStride, 2);
  std::vector<float> max(kColumns), shift(kStride), offset(kStride), exponent(kStride);
  std::vector<float> sum_exp(kColumns), sum_exp_x(kColumns), exps(kRows * kColumns);
  std::vector<Bfloat16Bits> narrow(kRows * kColumns);
  math.column_max(block.data(), kStride, kRows, kColumns, max.data());
  math.column_references(
      {max.data(), kColumns, 0.7f, shift.data(), offset.data(), exponent.data()});
  ColumnExp job{block.data(),  kStride, kRows,          kColumns,         shift.data(),
                offset.data(), 0.7f,    sum_exp.data(), sum_exp_x.data(), exps.data()};
  math.column_exp(job);
  digest.Add(max).Add(exponent).Add(sum_exp).Add(sum_exp_x).Add(exps);
  job.exps = narrow.data();
  job.bfloat16 = true;
  math.column_exp(job);
  return digest.Add(narrow).text();
}

std::string WeightRowDigest() {
  const WeightRow& row = WeightRowOf(kSet);
  const std::vector<float> z = Floats(kNum, 3);
  std::vector<float> lane_max(NumWeightBlocks(kNum) * kWeightLanes), w(kNum);
  std::vector<double> sums(NumWeightBlocks(kNum)), above(sums.size()), in_band(sums.size());
  std::vector<int32_t> band(kNum + 16);
  bool valid = false;
  const float max = row.max(z.data(), kNum, lane_max.data(), &valid);
  row.weights(z.data(), kNum, max, 1.3f, w.data(), sums.data());
  SplitRow split{z.data(),     w.data(),       kNum,        0.5f, 2.5f,
                 above.data(), in_band.data(), band.data(), kNum};
  const int64_t num = row.split(split);
  band.resize(num);
  return Digest()
      .Add(lane_max)
      .Add(w)
      .Add(sums)
      .Add(above)
      .Add(in_band)
      .Add(band)
      .AddValue(row.weight_at_least(z.data(), w.data(), kNum, 1.0f))
      .text();
}

std::string PanelGemmDigest() {
  const PanelGemm& gemm = PanelGemmOf(kSet);
  constexpr int64_t kM = 21, kN = 37, kK = 130;
  const std::vector<float> a = Floats(kM * kK, 4), b = Floats(kN * kK, 5);
  const std::vector<Bfloat16Bits> narrow = Bfloats(kN * kK, 6);
  std::vector<float> panels((kN + gemm.panel_width - 1) / gemm.panel_width * gemm.panel_width * kK);
  std::vector<float> c(kM * kN), scaled(kM * kK), widened(kN * kK);
  gemm.pack(b.data(), ElementOrder::kColumns, kK, kK, kN, panels.data());
  gemm.multiply(a.data(), ElementOrder::kRows, kK, panels.data(), kM, kN, kK, c.data(), kN, false);
  gemm.pack_bf16(narrow.data(), ElementOrder::kRows, kN, kK, kN, panels.data());
  gemm.multiply(a.data(), ElementOrder::kColumns, kM, panels.data(), kM, kN, kK, c.data(), kN,
                true);
  gemm.scale(a.data(), a.data(), kM * kK, scaled.data());
  gemm.add_scaled(b.data(), 0.3f, kM * kK, scaled.data());
  gemm.add_scaled_bf16(narrow.data(), 0.3f, kM * kK, scaled.data());
  gemm.widen(narrow.data(), kN * kK, widened.data());
  return Digest().Add(c).Add(scaled).Add(widened).text();
}

std::string PackedGemmDigest() {
  const PackedGemm& gemm = PackedGemmOf(kSet);
  constexpr int64_t kM = 19, kN = 70, kK = 133;
  const std::vector<float> x = Floats(kM * kK, 7), w = Floats(kN * kK, 8);
  const std::vector<Bfloat16Bits> narrow = Bfloats(kN * kK, 9);
  std::vector<float> panels(2 * FloatPanelElements(kK)), c(kM * kN), d(kN * kN);
  std::vector<Bfloat16Bits> pairs(2 * PairPanelElements(kK)), rounded(kM * kN);
  for (int64_t n = 0; n < kN; n += kPanelOutputs) {
    const int64_t num = std::min(kPanelOutputs, kN - n), panel = n / kPanelOutputs;
    PackFloatColumns(&w[n * kK], kK, num, kK, 0, &panels[panel * FloatPanelElements(kK)]);
    PackPairColumns(&narrow[n * kK], kK, num, kK, 0, &pairs[panel * PairPanelElements(kK)]);
  }
  gemm.multiply_floats(x.data(), kK, panels.data(), kM, kN, kK, c.data(), kN, false);
  gemm.multiply_widened_pairs(x.data(), kK, PairPanels(pairs.data()), kM, kN, kK, c.data(), kN,
                              true);
  gemm.add_transposed_floats(w.data(), kN, w.data(), kN, kK, kPanelOutputs, kPanelOutputs, d.data(),
                             kN);
  gemm.add_and_round(c.data(), x.data(), kM * kN, rounded.data());
  return Digest().Add(c).Add(d).Add(rounded).text();
}

std::string PanelPackingDigest() {
  const PanelPacking& packing = PanelPackingOf(kSet);
  const std::vector<float> rows = Floats(61 * 37, 10);
  std::vector<float> words(37 * 64);
  packing.transpose_words(reinterpret_cast<const char*>(rows.data()), 37 * 4, 61, 37,
                          reinterpret_cast<char*>(words.data()));
  return Digest().Add(words).text();
}

std::string CausalRowsDigest() {
  const CausalRows& rows = CausalRowsOf(kSet);
  std::vector<float> s = Floats(kNum, 11), weights = s, dp = Floats(kNum, 12);
  float sum = 0;
  const float log_sum = rows.softmax(weights.data(), 3, kNum - 5, kNum, 0.25f, &sum);
  Digest digest;
  digest.Add(weights).AddValue(sum).AddValue(log_sum).AddValue(rows.dot(s.data(), dp.data(), kNum));
  rows.gradient(s.data(), dp.data(), 3, kNum - 5, kNum, 0.25f, 8.0f, 0.01f);
  return digest.Add(s).Add(dp).text();
}

std::string LayerLoopsDigest(DataType type) {
  const LayerLoops& loops = LayerLoopsOf(kSet, type);
  constexpr int64_t kHead = 130;
  const auto values = [&](uint64_t seed) { return testing::StoreAs(type, Floats(kNum, seed)); };
  const testing::Stored x = values(13), weight = values(14), d = values(15);
  testing::Stored out = values(16), out2 = values(17);
  std::vector<float> partial(kNum), scratch(kNum);
  Digest digest;
  const float inverse_rms =
      loops.rms_norm(x.In(), nullptr, weight.In(), kNum, 1e-6f, nullptr, out.Out());
  digest.AddValue(inverse_rms).Add(out.bytes).AddValue(loops.sum_of_squares(x.In(), kNum));
  loops.rms_norm_backward(x.In(), weight.In(), inverse_rms, d.In(), nullptr, kNum, out.Out(),
                          partial.data());
  digest.Add(out.bytes).Add(partial);
  const float head_rms =
      loops.rotate(x.In(), weight.In(), d.In(), out2.In(), kHead, 1e-6f, out.Out());
  digest.AddValue(head_rms).Add(out.bytes);
  loops.rotate_backward(x.In(), weight.In(), head_rms, d.In(), out2.In(), weight.In(), kHead,
                        out.Out(), scratch.data(), partial.data());
  digest.Add(out.bytes).Add(partial);
  loops.swiglu(x.In(), weight.In(), kNum, out.Out());
  digest.Add(out.bytes);
  loops.swiglu_backward(x.In(), weight.In(), d.In(), kNum, out.Out(), out2.Out());
  digest.Add(out.bytes).Add(out2.bytes);

  const AdamWFactors<float> factors = {.gradient_scale = 0.7f,
                                       .one_minus_beta1 = 0.1f,
                                       .beta2 = 0.98f,
                                       .one_minus_beta2 = 0.02f,
                                       .step_size = 1e-3f,
                                       .root_scale = 4.1f,
                                       .eps = 1e-8f};
  std::vector<float> master = Floats(kNum, 18), moment = Floats(kNum, 19), square(kNum, 0.5f);
  std::vector<uint16_t> parameter(kNum);
  AdamWElements elements = {.size = kNum,
                            .gradient = x.In(),
                            .master = master.data(),
                            .exp_avg = moment.data(),
                            .exp_avg_sq = square.data(),
                            .bfloat16 = parameter.data()};
  loops.adamw(factors, 0.999f, elements);
  digest.Add(master).Add(moment).Add(square).Add(parameter);
  std::vector<uint16_t> narrow_moment = Bfloats(kNum, 20), narrow_square(kNum, 0x3f00);
  elements.master = nullptr;
  elements.exp_avg = narrow_moment.data();
  elements.exp_avg_sq = narrow_square.data();
  elements.bfloat16_moments = true;
  elements.random_key = AdamWRandomKey(3, 1);
  elements.weight_key = AdamWWeightKey(3, 1);
  loops.adamw(factors, 0.999f, elements);
  return digest.Add(narrow_moment).Add(narrow_square).Add(parameter).text();
}

std::string AttentionDigest(DataType type) {
  testing::AttentionCase c = {{.dtype = type, .head_size = 24}, {70, 300}};  // 1 partition, and 2
  std::vector<std::vector<float>> rows;
  for (int64_t length : c.lengths) rows.push_back(Floats(length * c.RowSize(), 21));
  testing::AttentionBatch batch(c, rows, 1, kSet);
  batch.StepInChunks(90, testing::OneThread);
  Digest digest;
  for (size_t s = 0; s < rows.size(); ++s) digest.Add(batch.BytesOf(s));
  return digest.text();
}

TEST(BaseInstructionSet, GivesTheSameBitsOnEveryArchitecture) {
  const std::map<std::string, std::string> digests = {
      {"row_math", RowMathDigest()},
      {"weight_row", WeightRowDigest()},
      {"panel_gemm", PanelGemmDigest()},
      {"packed_gemm", PackedGemmDigest()},
      {"panel_packing", PanelPackingDigest()},
      {"causal_rows", CausalRowsDigest()},
      {"layer_loops_float32", LayerLoopsDigest(DataType::kFloat32)},
      {"layer_loops_bfloat16", LayerLoopsDigest(DataType::kBFloat16)},
      {"attention_loops_float32", AttentionDigest(DataType::kFloat32)},
      {"attention_loops_bfloat16", AttentionDigest(DataType::kBFloat16)},
  };
  const char* const tree = std::getenv("TAOPD_SOURCE_DIR");
  ASSERT_NE(tree, nullptr);
  std::ifstream file(std::string(tree) + "/tests/kernels/cpu/isa/golden/base_digests.txt");
  std::map<std::string, std::string> golden;
  for (std::string name, digest; file >> name >> digest;) golden[name] = digest;
  std::string all;
  for (const auto& [name, digest] : digests) all += name + " " + digest + "\n";
  EXPECT_EQ(digests, golden) << "digests of this processor:\n" << all;
}

}  // namespace
}  // namespace taopd::cpu
