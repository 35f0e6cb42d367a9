// Coded panels: the layout of the header, and products with the same bits as those of the plain
// panels, wherever the exceptions are.
#include "kernels/cpu/gemm/coded_panel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "kernels/cpu/gemm/packed_gemm.h"
#include "tests/kernels/cpu/gemm/coded_matrix.h"
#include "tests/kernels/cpu/normal_floats.h"
#include "tests/kernels/cpu/supported_sets.h"

namespace taopd::cpu {
namespace {

using testing::UpperHalf;

std::vector<Bfloat16Bits> Normal(int64_t num, float deviation, uint64_t seed) {
  std::vector<Bfloat16Bits> numbers;
  for (const float value : testing::NormalFloats(num, seed, deviation))
    numbers.push_back(UpperHalf(value));
  return numbers;
}

// Decodes using only the description in the header.
std::vector<Bfloat16Bits> Decoded(const CodedPanelTables& tables, const uint8_t* steps,
                                  int64_t num_steps) {
  std::vector<Bfloat16Bits> numbers(static_cast<size_t>(num_steps * kStepNumbers));
  for (int64_t step = 0; step < num_steps; ++step) {
    const uint8_t* from = steps + step * kCodedStepBytes;
    for (int64_t p = 0; p < 64; ++p) {
      const int64_t i = 8 * (p / 16) + p % 8 + 32 * (p / 8 % 2);
      Bfloat16Bits* to = numbers.data() + step * kStepNumbers;
      to[i] = static_cast<Bfloat16Bits>(tables.high_bytes[from[p] & 0xf] << 8 | from[64 + p]);
      to[64 + i] = static_cast<Bfloat16Bits>(tables.high_bytes[from[p] >> 4] << 8 | from[128 + p]);
    }
  }
  for (const CodedException& exception : tables.exceptions) {
    if (exception.position != kNoPosition) numbers[exception.position] = exception.number;
  }
  return numbers;
}

TEST(CodedPanel, IsTheLayoutOfTheHeader) {
  constexpr int64_t kSteps = 300;
  std::vector<Bfloat16Bits> plain = Normal(kSteps * kStepNumbers, 0.02f, 1);
  // Numbers that a normal distribution does not contain: infinities, NaN, denormals, both zeros.
  const Bfloat16Bits odd[] = {0x7f80, 0xff80, 0x7fc1, 0x0001, 0x8001, 0x0000, 0x8000, 0x7f7f};
  for (size_t i = 0; i < std::size(odd); ++i) plain[i * 977] = odd[i];
  std::vector<uint8_t> steps(kSteps * kCodedStepBytes);
  CodedPanelTables tables;
  ASSERT_TRUE(EncodePanel(plain.data(), kSteps, steps.data(), &tables));
  EXPECT_EQ(Decoded(tables, steps.data(), kSteps), plain);
  EXPECT_EQ(std::set<uint8_t>(tables.high_bytes, tables.high_bytes + kHighBytes).size(), 16u);
  ASSERT_FALSE(tables.exceptions.empty());
  EXPECT_EQ(tables.exceptions.back().position, kNoPosition);
  EXPECT_TRUE(std::is_sorted(
      tables.exceptions.begin(), tables.exceptions.end(),
      [](const CodedException& a, const CodedException& b) { return a.position < b.position; }));
  // About one in ten thousand of a normal distribution, plus the odd ones.
  EXPECT_GE(tables.exceptions.size(), std::size(odd));
  EXPECT_LE(tables.exceptions.size(), std::size(odd) + kSteps * kStepNumbers / 2000);
}

TEST(CodedPanel, NumbersThatAreSpreadTooWideStayPlain) {
  constexpr int64_t kSteps = 64;
  std::vector<uint8_t> steps(kSteps * kCodedStepBytes);
  CodedPanelTables tables;
  std::vector<Bfloat16Bits> plain(kSteps * kStepNumbers);
  for (size_t i = 0; i < plain.size(); ++i) plain[i] = static_cast<Bfloat16Bits>(i * 40503);
  EXPECT_FALSE(EncodePanel(plain.data(), kSteps, steps.data(), &tables));
  // At most one number in 64 may be an exception: here the rarest of 17 high bytes.
  const size_t most = plain.size() / 64;
  for (const size_t rare : {most, most + 1}) {
    for (size_t i = 0; i < plain.size(); ++i) {
      plain[i] = static_cast<Bfloat16Bits>((i < rare ? 0x7f : i % 16) << 8 | i % 256);
    }
    EXPECT_EQ(EncodePanel(plain.data(), kSteps, steps.data(), &tables), rare == most);
  }
}

// Exceptions are at both ends of each block that any instruction set works in, and next to each
// other; K is even and odd; rows fill one tile and several; the last panel is not whole.
TEST(CodedPanel, ProductsAreThoseOfThePlainPanel) {
  constexpr int64_t kPanels = 2;
  for (const int64_t num_k : {int64_t{1}, int64_t{2}, int64_t{65}, int64_t{1290}, int64_t{2307}}) {
    const int64_t num_steps = (num_k + 1) / 2, elements = num_steps * kStepNumbers;
    std::vector<Bfloat16Bits> plain = Normal(kPanels * elements, 1, 3);
    for (int64_t panel = 0; panel < kPanels; ++panel) {
      for (const int64_t step : {0, 1, 31, 32, 33, 255, 256, 511, 512, 513, 1024, 1151}) {
        if (num_k < 64 || step + 1 >= num_steps) continue;
        Bfloat16Bits* const numbers = plain.data() + panel * elements + step * kStepNumbers;
        numbers[0] = UpperHalf(1e20f);
        numbers[step % 127] = UpperHalf(-3e-12f);
        numbers[127] = UpperHalf(7e15f);
      }
      if (num_k % 2 != 0) {
        Bfloat16Bits* const last = plain.data() + (panel + 1) * elements - kStepNumbers;
        for (int64_t n = 0; n < 64; ++n) last[2 * n + 1] = 0;
        if (num_k > 64) last[6] = UpperHalf(5e19f);
      }
    }
    const CodedMatrix coded(plain, kPanels);
    for (const PackedGemm* gemm : testing::SupportedPackedGemms()) {
      for (const int64_t num_m : {1, 2, 3, 4, 5, 6, 7, 12, 13, 40}) {
        for (const int64_t num_n : {128, 100}) {
          const std::vector<Bfloat16Bits> x = Normal(num_m * num_k, 1, 4);
          std::vector<float> wide(x.size());
          std::transform(x.begin(), x.end(), wide.begin(), testing::Widened);
          const auto multiply = [&](const PairPanels& panels) {
            std::vector<float> c(static_cast<size_t>(num_m * 128), 77);
            gemm->multiply_pairs != nullptr
                ? gemm->multiply_pairs(x.data(), num_k, panels, num_m, num_n, num_k, c.data(), 128,
                                       false)
                : gemm->multiply_widened_pairs(wide.data(), num_k, panels, num_m, num_n, num_k,
                                               c.data(), 128, false);
            return c;
          };
          const std::vector<float> expected = multiply(plain.data());
          const std::vector<float> found = multiply(coded.panels.data());
          ASSERT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0)
              << testing::NameOf(gemm) << ", K " << num_k << ", " << num_m << " rows, " << num_n
              << " outputs";
        }
      }
    }
  }
}

}  // namespace
}  // namespace taopd::cpu
