// A panel of bfloat16 pairs in three quarters of its bytes, without loss.
//
// Decoding reads every weight once per step, so memory bandwidth limits its speed. A bfloat16
// number is a high byte, the sign and seven of the eight bits of the exponent, and a low byte, the
// last bit of the exponent and the mantissa. The weights of one matrix are close to zero and span a
// few powers of two: 16 high bytes, two signs by eight pairs of neighboring exponents, cover all
// but about one number in ten thousand of a normal distribution. A coded panel therefore keeps each
// low byte, four bits that select one of the panel's 16 high bytes, and a list of the numbers with
// any other high byte. (The entropy of the exponents of weights is between two and three bits:
// Zhang et al., "70% Size, 100% Accuracy", 2025. A fixed width of four bits wastes some of it, but
// a single shuffle expands it.)
//
// A step, one pair of k for each of the 64 outputs (packed_gemm.h), has 128 numbers i in the order
// of the plain panel. It is coded as
//
//   codes[64]      byte p: the code of number i(p) in its lower half, of 64 + i(p) in its upper one
//   low_bytes[64]  of the numbers i(p)
//   low_bytes[64]  of the numbers 64 + i(p)
//
// where i(p) = 8 (p / 16) + p % 8 + 32 (p / 8 % 2): two instructions that interleave bytes within
// 16 bytes restore the order. The layout is the same for every instruction set.
//
// Any thread may call these functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/gemm/panel_gemm.h"

namespace taopd::cpu {

inline constexpr int64_t kStepNumbers = 128;
inline constexpr int64_t kCodedStepBytes = kStepNumbers * 3 / 2;
inline constexpr int kHighBytes = 16;

// A number whose high byte is not among the panel's 16, at step * kStepNumbers + i.
struct CodedException {
  uint32_t position;
  Bfloat16Bits number;
};
inline constexpr uint32_t kNoPosition = 0xffffffffu;

// A coded panel as products read it. Refers to memory of the owner.
struct CodedPanel {
  const uint8_t* steps;              // [steps, kCodedStepBytes]
  const uint8_t* high_bytes;         // [kHighBytes]
  const CodedException* exceptions;  // ascending; followed by one at kNoPosition
};

// The output of EncodePanel besides the steps.
struct CodedPanelTables {
  uint8_t high_bytes[kHighBytes] = {};
  std::vector<CodedException> exceptions;  // including the one at kNoPosition
};

// Codes num_steps steps of a plain panel into `steps`, [num_steps, kCodedStepBytes]. Returns false
// if more than one number in 64 is an exception: such a panel should stay plain, and `steps` and
// `tables` are unspecified. REQUIRES: num_steps < 2^25.
bool EncodePanel(const Bfloat16Bits* panel, int64_t num_steps, uint8_t* steps,
                 CodedPanelTables* tables);

}  // namespace taopd::cpu
