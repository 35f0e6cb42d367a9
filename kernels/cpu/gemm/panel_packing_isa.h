// The loops of panel_packing.h, compiled once per instruction set (kernels/cpu/isa/isa.h).
#pragma once

#include <stdint.h>

#include "kernels/cpu/gemm/coded_panel.h"
#include "kernels/cpu/gemm/panel_packing.h"
#include "kernels/cpu/isa/compiled_isa.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

constexpr int64_t kWord = 4, kStepWords = 64, kStepBytes = kStepWords * kWord;
// The words of a cache line: all of a row's line is used before its next one is read.
constexpr int64_t kLineWords = 16;
constexpr int64_t kHalf = kStepNumbers / 2;

void CopyWords(const char* rows, int64_t row_bytes, int64_t num_rows, int64_t num_words,
               char* words) {
  for (int64_t n = 0; n < num_rows; ++n) {
    for (int64_t k = 0; k < num_words; ++k) {
      __builtin_memcpy(words + k * kStepBytes + n * kWord, rows + n * row_bytes + k * kWord, kWord);
    }
  }
}

#ifdef __AVX512BW__

// Transposes 16 words of 16 rows. In each of four rounds, rows i and i + 8 give rows 2 i and
// 2 i + 1 of the result, which take their words in turn: the bits of a word's row and column rotate
// by one.
TAOPD_ALWAYS_INLINE void TransposeLine(const char* rows, int64_t row_bytes, char* words) {
  const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i second =
      _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
  __m512i lines[16], mixed[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) lines[i] = _mm512_loadu_si512(rows + i * row_bytes);
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      mixed[2 * i] = _mm512_permutex2var_epi32(lines[i], first, lines[i + 8]);
      mixed[2 * i + 1] = _mm512_permutex2var_epi32(lines[i], second, lines[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) lines[i] = mixed[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(words + i * kStepBytes, lines[i]);
}

void TransposeWords(const char* rows, int64_t row_bytes, int64_t num_rows, int64_t num_words,
                    char* words) {
  const int64_t whole_rows = num_rows / 16 * 16, whole_words = num_words / 16 * 16;
  for (int64_t k = 0; k < whole_words; k += kLineWords) {
    const char* const from = rows + k * kWord;
    char* const to = words + k * kStepBytes;
    for (int64_t n = 0; n < whole_rows; n += 16) {
      TransposeLine(from + n * row_bytes, row_bytes, to + n * kWord);
    }
    CopyWords(from + whole_rows * row_bytes, row_bytes, num_rows - whole_rows, kLineWords,
              to + whole_rows * kWord);
  }
  CopyWords(rows + whole_words * kWord, row_bytes, num_rows, num_words - whole_words,
            words + whole_words * kStepBytes);
}

// Codes half a step: returns the codes, each in a byte, and writes the low bytes. Packing words
// into bytes alternates between its arguments within 16 bytes, which is the order of coded_panel.h.
TAOPD_ALWAYS_INLINE __m512i EncodeHalf(const Bfloat16Bits* numbers,
                                       const __m512i (&high_bytes)[kHighBytes], uint8_t* low_bytes,
                                       __mmask64* found) {
  const __m512i low = _mm512_set1_epi16(0xff);
  const __m512i first = _mm512_loadu_si512(numbers), second = _mm512_loadu_si512(numbers + 32);
  _mm512_storeu_si512(
      low_bytes, _mm512_packus_epi16(_mm512_and_si512(first, low), _mm512_and_si512(second, low)));
  const __m512i high =
      _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
  __m512i codes = _mm512_set1_epi8(kHighBytes - 1);
  __mmask64 any = 0;
#pragma GCC unroll 16
  for (int i = 0; i < kHighBytes; ++i) {
    const __mmask64 equal = _mm512_cmpeq_epi8_mask(high, high_bytes[i]);
    codes = _mm512_mask_blend_epi8(equal, codes, _mm512_set1_epi8(static_cast<char>(i)));
    any |= equal;
  }
  *found = any;
  return codes;
}

int64_t EncodeSteps(const Bfloat16Bits* panel, int64_t num_steps, const uint8_t* high_bytes,
                    uint8_t* steps, bool* exception) {
  __m512i wanted[kHighBytes];
  for (int i = 0; i < kHighBytes; ++i) {
    wanted[i] = _mm512_set1_epi8(static_cast<char>(high_bytes[i]));
  }
  for (int64_t step = 0; step < num_steps; ++step) {
    const Bfloat16Bits* const numbers = panel + step * kStepNumbers;
    uint8_t* const to = steps + step * kCodedStepBytes;
    __mmask64 found[2];
    const __m512i first = EncodeHalf(numbers, wanted, to + kHalf, &found[0]);
    const __m512i second = EncodeHalf(numbers + kHalf, wanted, to + 2 * kHalf, &found[1]);
    _mm512_storeu_si512(to, _mm512_or_si512(first, _mm512_slli_epi16(second, 4)));
    if ((found[0] & found[1]) != ~__mmask64{0}) {
      *exception = true;
      return step + 1;
    }
  }
  *exception = false;
  return num_steps;
}

#else

void TransposeWords(const char* rows, int64_t row_bytes, int64_t num_rows, int64_t num_words,
                    char* words) {
  for (int64_t k = 0; k < num_words; k += kLineWords) {
    CopyWords(rows + k * kWord, row_bytes, num_rows,
              num_words - k < kLineWords ? num_words - k : kLineWords, words + k * kStepBytes);
  }
}

int64_t EncodeSteps(const Bfloat16Bits* panel, int64_t num_steps, const uint8_t* high_bytes,
                    uint8_t* steps, bool* exception) {
  constexpr uint8_t kNoCode = 0xff;
  uint8_t codes[256];
  for (uint8_t& code : codes) code = kNoCode;
  for (int i = 0; i < kHighBytes; ++i) codes[high_bytes[i]] = static_cast<uint8_t>(i);
  for (int64_t step = 0; step < num_steps; ++step) {
    const Bfloat16Bits* const numbers = panel + step * kStepNumbers;
    uint8_t* const to = steps + step * kCodedStepBytes;
    uint8_t any = 0;
    for (int64_t p = 0; p < kHalf; ++p) {
      const int64_t i = 8 * (p / 16) + p % 8 + 32 * (p / 8 % 2);
      const Bfloat16Bits first = numbers[i], second = numbers[kHalf + i];
      const uint8_t first_code = codes[first >> 8], second_code = codes[second >> 8];
      any |= static_cast<uint8_t>(first_code | second_code);
      to[p] = static_cast<uint8_t>((first_code & 0xf) | second_code << 4);
      to[kHalf + p] = static_cast<uint8_t>(first);
      to[2 * kHalf + p] = static_cast<uint8_t>(second);
    }
    if ((any & 0xf0) != 0) {
      *exception = true;
      return step + 1;
    }
  }
  *exception = false;
  return num_steps;
}

#endif

}  // namespace

const PanelPacking kPanelPacking = {TransposeWords, EncodeSteps};

}  // namespace taopd::cpu::TAOPD_ISA
