#include "kernels/cpu/gemm/coded_panel.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/cpu/gemm/panel_packing.h"

namespace taopd::cpu {
namespace {

constexpr int64_t kNumbersPerException = 64;
// The number of steps, spread over the panel, from whose numbers the high bytes are chosen.
constexpr int64_t kSampledSteps = 32;

// Chooses the 16 most frequent high bytes of a sample, in ascending order among equally frequent
// ones.
void ChooseHighBytes(const Bfloat16Bits* panel, int64_t num_steps, uint8_t* high_bytes) {
  // Neighbors are often equal, and a count must be written before it is read again.
  std::array<int32_t, 256> counts{}, odd_counts{};
  const int64_t stride = std::max<int64_t>(1, num_steps / kSampledSteps);
  for (int64_t step = 0; step < num_steps; step += stride) {
    for (int64_t i = 0; i < kStepNumbers; i += 2) {
      ++counts[panel[step * kStepNumbers + i] >> 8];
      ++odd_counts[panel[step * kStepNumbers + i + 1] >> 8];
    }
  }
  for (size_t i = 0; i < counts.size(); ++i) counts[i] += odd_counts[i];
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
  std::array<bool, 256> has_code{};
  for (const uint8_t high_byte : tables->high_bytes) has_code[high_byte] = true;
  const auto most = static_cast<size_t>(num_steps * kStepNumbers / kNumbersPerException);
  std::vector<CodedException>& exceptions = tables->exceptions;
  exceptions.clear();
  for (int64_t step = 0; step < num_steps;) {
    bool exception = false;
    step += BestPanelPacking().encode_steps(panel + step * kStepNumbers, num_steps - step,
                                            tables->high_bytes, steps + step * kCodedStepBytes,
                                            &exception);
    if (!exception) break;
    for (int64_t i = (step - 1) * kStepNumbers; i < step * kStepNumbers; ++i) {
      if (!has_code[panel[i] >> 8]) exceptions.push_back({static_cast<uint32_t>(i), panel[i]});
    }
    if (exceptions.size() > most) return false;
  }
  exceptions.push_back({kNoPosition, 0});
  exceptions.shrink_to_fit();
  return true;
}

}  // namespace taopd::cpu
