// The packing loops of every instruction set of this processor against plain ones.
#include "kernels/cpu/gemm/panel_packing.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/gemm/coded_panel.h"
#include "tests/kernels/cpu/supported_sets.h"

namespace taopd::cpu {
namespace {

TEST(PanelPacking, TransposesWordsOfAllShapes) {
  for (const InstructionSet set : testing::SupportedSets()) {
    for (const int64_t num_rows : {1, 15, 16, 17, 48, 63, 64}) {
      for (const int64_t num_words : {1, 15, 16, 17, 33, 64}) {
        const int64_t row_words = num_words + 3;
        std::vector<uint32_t> rows(num_rows * row_words), words(num_words * 64, 7);
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint32_t>(1000 + i);
        PanelPackingOf(set).transpose_words(reinterpret_cast<const char*>(rows.data()),
                                            row_words * 4, num_rows, num_words,
                                            reinterpret_cast<char*>(words.data()));
        for (int64_t k = 0; k < num_words; ++k) {
          for (int64_t n = 0; n < 64; ++n) {
            ASSERT_EQ(words[k * 64 + n], n < num_rows ? rows[n * row_words + k] : 7)
                << NameOf(set) << ", " << num_rows << " x " << num_words;
          }
        }
      }
    }
  }
}

// Steps with a number that has no code are the last of their call.
TEST(PanelPacking, EncodesStepsLikeTheHeader) {
  constexpr int64_t kSteps = 40;
  std::mt19937 random(3);
  uint8_t high_bytes[kHighBytes];
  for (int i = 0; i < kHighBytes; ++i) high_bytes[i] = static_cast<uint8_t>(240 - 13 * i);
  std::vector<Bfloat16Bits> panel(kSteps * kStepNumbers);
  for (Bfloat16Bits& number : panel) {
    number = static_cast<Bfloat16Bits>(high_bytes[random() % kHighBytes] << 8 | random() % 256);
  }
  panel[5 * kStepNumbers + 77] = 0x0102;
  panel[kSteps * kStepNumbers - 1] = 0xffff;
  for (const InstructionSet set : testing::SupportedSets()) {
    std::vector<uint8_t> steps(kSteps * kCodedStepBytes);
    std::vector<int64_t> ends;
    for (int64_t step = 0; step < kSteps;) {
      bool exception = false;
      step += PanelPackingOf(set).encode_steps(panel.data() + step * kStepNumbers, kSteps - step,
                                               high_bytes, steps.data() + step * kCodedStepBytes,
                                               &exception);
      EXPECT_TRUE(exception) << NameOf(set);
      ends.push_back(step);
    }
    EXPECT_EQ(ends, (std::vector<int64_t>{6, kSteps})) << NameOf(set);
    for (int64_t step = 0; step < kSteps; ++step) {
      const uint8_t* const coded = steps.data() + step * kCodedStepBytes;
      for (int64_t half = 0; half < 2; ++half) {
        for (int64_t p = 0; p < 64; ++p) {
          const int64_t i = 64 * half + 8 * (p / 16) + p % 8 + 32 * (p / 8 % 2);
          const Bfloat16Bits number = panel[step * kStepNumbers + i];
          ASSERT_EQ(coded[64 + 64 * half + p], number & 0xff) << NameOf(set);
          if (number == 0x0102 || number == 0xffff) continue;
          ASSERT_EQ(high_bytes[coded[p] >> (4 * half) & 0xf], number >> 8) << NameOf(set);
        }
      }
    }
  }
}

TEST(PanelPacking, SaysIfNoStepHasAnException) {
  const std::vector<Bfloat16Bits> panel(3 * kStepNumbers, 0x3f80);
  uint8_t high_bytes[kHighBytes];
  for (int i = 0; i < kHighBytes; ++i) high_bytes[i] = static_cast<uint8_t>(0x30 + i);
  std::vector<uint8_t> steps(3 * kCodedStepBytes);
  for (const InstructionSet set : testing::SupportedSets()) {
    bool exception = true;
    EXPECT_EQ(
        PanelPackingOf(set).encode_steps(panel.data(), 3, high_bytes, steps.data(), &exception), 3);
    EXPECT_FALSE(exception) << NameOf(set);
  }
}

}  // namespace
}  // namespace taopd::cpu
