#include "kernels/cpu/gemm/coded_panel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

namespace taopd::cpu {
namespace {

constexpr int64_t kHalf = kStepNumbers / 2;
constexpr int64_t kNumbersPerException = 64;
// The number of steps, spread over the panel, from whose numbers the high bytes are chosen.
constexpr int64_t kSampledSteps = 128;
constexpr uint8_t kNoCode = 0xff;

constexpr std::array<uint8_t, kHalf> NumberOfByte() {
  std::array<uint8_t, kHalf> number{};
  for (int64_t p = 0; p < kHalf; ++p) {
    number[p] = static_cast<uint8_t>(8 * (p / 16) + p % 8 + 32 * (p / 8 % 2));
  }
  return number;
}
constexpr std::array<uint8_t, kHalf> kNumberOfByte = NumberOfByte();

// Chooses the 16 most frequent high bytes of a sample, in ascending order among equally frequent
// ones.
void ChooseHighBytes(const Bfloat16Bits* panel, int64_t num_steps, uint8_t* high_bytes) {
  std::array<int32_t, 256> counts{};
  const int64_t stride = std::max<int64_t>(1, num_steps / kSampledSteps);
  for (int64_t step = 0; step < num_steps; step += stride) {
    for (int64_t i = 0; i < kStepNumbers; ++i) ++counts[panel[step * kStepNumbers + i] >> 8];
  }
  std::array<uint8_t, 256> order;
  std::iota(order.begin(), order.end(), uint8_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](uint8_t a, uint8_t b) { return counts[a] > counts[b]; });
  std::copy_n(order.begin(), kHighBytes, high_bytes);
}

}  // namespace

bool EncodePanel(const Bfloat16Bits* panel, int64_t num_steps, uint8_t* steps,
                 CodedPanelTables* tables) {
  ChooseHighBytes(panel, num_steps, tables->high_bytes);
  std::array<uint8_t, 256> codes;
  codes.fill(kNoCode);
  for (int i = 0; i < kHighBytes; ++i) codes[tables->high_bytes[i]] = static_cast<uint8_t>(i);
  const auto most = static_cast<size_t>(num_steps * kStepNumbers / kNumbersPerException);
  std::vector<CodedException>& exceptions = tables->exceptions;
  exceptions.clear();
  for (int64_t step = 0; step < num_steps; ++step) {
    const Bfloat16Bits* const numbers = panel + step * kStepNumbers;
    uint8_t* const to = steps + step * kCodedStepBytes;
    uint8_t any = 0;
    for (int64_t p = 0; p < kHalf; ++p) {
      const Bfloat16Bits first = numbers[kNumberOfByte[p]];
      const Bfloat16Bits second = numbers[kHalf + kNumberOfByte[p]];
      const uint8_t first_code = codes[first >> 8], second_code = codes[second >> 8];
      any |= static_cast<uint8_t>(first_code | second_code);
      to[p] = static_cast<uint8_t>((first_code & 0xf) | second_code << 4);
      to[kHalf + p] = static_cast<uint8_t>(first);
      to[2 * kHalf + p] = static_cast<uint8_t>(second);
    }
    if ((any & 0xf0) == 0) continue;
    for (int64_t i = 0; i < kStepNumbers; ++i) {
      if (codes[numbers[i] >> 8] != kNoCode) continue;
      exceptions.push_back({static_cast<uint32_t>(step * kStepNumbers + i), numbers[i]});
    }
    if (exceptions.size() > most) return false;
  }
  exceptions.push_back({kNoPosition, 0});
  exceptions.shrink_to_fit();
  return true;
}

}  // namespace taopd::cpu
