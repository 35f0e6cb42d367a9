// Products of a few rows with panels of columns, the inner loops of attention_loops_isa.h: scores
// are queries times keys, outputs are weights times values.
//
//   C[m][n] = sum over steps of A(m, step) B(step, n)
//
// A step is one number of a row of A and one number of each column of B; for bfloat16 it is a pair
// of numbers. An element of C is computed by the same sequence of operations whatever the other
// rows and columns are.
#pragma once

#include <stdint.h>

#include "kernels/cpu/isa/compiled_isa.h"
#include "taopd/attention/paged_attention.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

// The rows of a tile of two vectors that is kept in registers.
constexpr int kTileRows = kLanes == 16 ? 12 : kLanes == 8 ? 5 : 4;
constexpr int kVectors = 2;
constexpr int64_t kPanelWidth = kLanes * kVectors;
// A step of a block has kBlockTokens = kValueColumns columns of one word each.
constexpr int64_t kStepBytes = 4 * kBlockTokens;
constexpr int64_t kPanelBytes = 4 * kPanelWidth;
constexpr int64_t kPanelsPerBlock = kBlockTokens / kPanelWidth;

// Tiles with at most this many rows wait for memory, so they prefetch what comes next. With more
// rows, a partition is usually in the cache from the second tile on.
constexpr int kMemoryBoundRows = kTileRows * 2 / 3;
constexpr int64_t kLineBytes = 64;

// Loads a word of A, whose memory may have another type.
template <typename Value>
TAOPD_ALWAYS_INLINE Value WordAt(const uint32_t* place) {
  Value value;
  __builtin_memcpy(&value, place, sizeof(value));
  return value;
}

// The arithmetic of a product. kStepNumbers is the number of elements of a row of A in a step, and
// kStepWords the number of words of A that hold them. LoadPart loads part i of a step for a vector
// of columns: the numbers of B that word i of A multiplies. AddProduct adds their product with a
// word to the sums of the columns.

struct Float32Arithmetic {
  static constexpr int kStepNumbers = 1;
  static constexpr int kStepWords = 1;

  template <int kPart>
  static TAOPD_ALWAYS_INLINE void LoadPart(const char* from, Floats* part) {
    Load(part, from);
  }
  static TAOPD_ALWAYS_INLINE void AddProduct(const uint32_t* word, const Floats* part,
                                             Floats* sum) {
    *sum += WordAt<float>(word) * *part;
  }

  static TAOPD_ALWAYS_INLINE void PackQuery(const void* query, int64_t size, uint32_t* packed) {
    __builtin_memcpy(packed, query, size * sizeof(float));
  }
  // Stores the weights of kPanelWidth positions in row a of A, at `token`, and adds them to *sum.
  static TAOPD_ALWAYS_INLINE void StoreWeights(const Floats* weights, int64_t token, uint32_t* a,
                                               Floats* sum) {
    Store(a + token, &weights[0]);
    Store(a + token + kLanes, &weights[1]);
    *sum += weights[0];
    *sum += weights[1];
  }
};

// bfloat16 keys and values, widened. A is float32.
struct WidenedBfloat16Arithmetic : Float32Arithmetic {
  static constexpr int kStepNumbers = 2;
  static constexpr int kStepWords = 2;

  template <int kPart>
  static TAOPD_ALWAYS_INLINE void LoadPart(const char* from, Floats* part) {
    Ints pairs;
    Load(&pairs, from);
    *part = kPart == 0 ? (Floats)(pairs << 16) : (Floats)(pairs & static_cast<int32_t>(0xffff0000));
  }

  static TAOPD_ALWAYS_INLINE void PackQuery(const void* query, int64_t size, uint32_t* packed) {
    const auto* from = static_cast<const uint16_t*>(query);
    for (int64_t i = 0; i < size; ++i) packed[i] = static_cast<uint32_t>(from[i]) << 16;
  }
};

#ifdef __AVX512BF16__
// Pairs of bfloat16, multiplied and added by one instruction. A also holds pairs.
struct PairArithmetic : Float32Arithmetic {
  static constexpr int kStepNumbers = 2;

  static TAOPD_ALWAYS_INLINE void AddProduct(const uint32_t* word, const Floats* part,
                                             Floats* sum) {
    const __m512i factor = _mm512_set1_epi32(WordAt<int32_t>(word));
    *sum = (Floats)_mm512_dpbf16_ps((__m512)*sum, (__m512bh)factor, (__m512bh)*part);
  }

  static TAOPD_ALWAYS_INLINE void PackQuery(const void* query, int64_t size, uint32_t* packed) {
    __builtin_memcpy(packed, query, size * sizeof(uint16_t));
  }
  // Sums the rounded weights, so that the weights by which the values are multiplied add up to
  // exactly one, and rounding does not change values that agree.
  static TAOPD_ALWAYS_INLINE void StoreWeights(const Floats* weights, int64_t token, uint32_t* a,
                                               Floats* sum) {
    const __m512bh pairs = _mm512_cvtne2ps_pbh((__m512)weights[1], (__m512)weights[0]);
    __builtin_memcpy(a + token / 2, &pairs, sizeof(pairs));
    const __m512i ones = _mm512_set1_epi32(0x3f803f80);
    *sum = (Floats)_mm512_dpbf16_ps((__m512)*sum, (__m512bh)ones, pairs);
  }
};
#endif

// The location of the columns of B. B consists of segments of steps_per_segment steps, which are
// summed one after the other; segment s of panel j is at panels[s * segment_stride + j].
struct Panels {
  const char* const* panels;
  int64_t segment_stride;
  int64_t steps_per_segment;
  // The distance in bytes to the data that is read next; 0 if it is unknown.
  int64_t next_bytes;
};

// Steps [begin, end) of a product; row m of A at a + m * a_stride holds all steps from 0.
struct Steps {
  int64_t begin, end;
};

// Adds the products of one step, from part kPart on, to sums [kRows][kPanels * kVectors]. The order
// of the loops needs few registers besides the sums.
template <typename Arithmetic, int kPart, int kRows, int kPanels>
TAOPD_ALWAYS_INLINE void AddStep(const uint32_t* factors, int64_t a_stride, const char** panels,
                                 Floats* sums) {
  constexpr int kColumns = kPanels * kVectors;
  Floats parts[kColumns];
#pragma GCC unroll 8
  for (int j = 0; j < kColumns; ++j) {
    Arithmetic::template LoadPart<kPart>(panels[j / kVectors] + j % kVectors * sizeof(Floats),
                                         &parts[j]);
    if constexpr (kRows < kColumns) {
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m) {
        Arithmetic::AddProduct(factors + m * a_stride, &parts[j], &sums[m * kColumns + j]);
      }
    }
  }
  if constexpr (kRows >= kColumns) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) {
        Arithmetic::AddProduct(factors + m * a_stride, &parts[j], &sums[m * kColumns + j]);
      }
    }
  }
  if constexpr (kPart + 1 < Arithmetic::kStepWords) {
    AddStep<Arithmetic, kPart + 1, kRows, kPanels>(factors + 1, a_stride, panels, sums);
  }
}

template <typename Arithmetic, int kRows, int kPanels>
void Tile(const uint32_t* a, int64_t a_stride, const Panels& b, Steps steps, float* c,
          int64_t c_stride, bool accumulate) {
  constexpr int kColumns = kPanels * kVectors;  // number of vectors
  Floats sums[kRows][kColumns];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) sums[m][j] = Floats{};
  }
  if (accumulate) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
      for (int j = 0; j < kColumns; ++j) Load(&sums[m][j], c + m * c_stride + j * kLanes);
    }
  }
  int64_t segment = steps.begin / b.steps_per_segment;
  for (int64_t step = steps.begin; step < steps.end; ++segment) {
    const int64_t segment_begin = segment * b.steps_per_segment;
    const int64_t segment_end = segment_begin + b.steps_per_segment;
    const int64_t end = segment_end < steps.end ? segment_end : steps.end;
    const char* from[kPanels];
#pragma GCC unroll 4
    for (int j = 0; j < kPanels; ++j) {
      from[j] = b.panels[segment * b.segment_stride + j] + (step - segment_begin) * kStepBytes;
    }
    const uint32_t* factors = a + step * Arithmetic::kStepWords;
    for (; step < end; ++step, factors += Arithmetic::kStepWords) {
      AddStep<Arithmetic, 0, kRows, kPanels>(factors, a_stride, from, &sums[0][0]);
#pragma GCC unroll 4
      for (int j = 0; j < kPanels; ++j) {
        if constexpr (kRows <= kMemoryBoundRows) {
#pragma GCC unroll 2
          for (int64_t line = 0; line < kPanelBytes; line += kLineBytes) {
            __builtin_prefetch(from[j] + b.next_bytes + line, 0, 2);
          }
        }
        from[j] += kStepBytes;
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
    for (int j = 0; j < kColumns; ++j) Store(c + m * c_stride + j * kLanes, &sums[m][j]);
  }
}

// Returns the panels of a tile. Few rows take several panels, so that enough sums are in flight.
constexpr int PanelsPerTile(int rows) {
  return 4 * rows <= kTileRows ? 4 : 2 * rows <= kTileRows ? 2 : 1;
}

// Computes num_rows <= kTileRows rows and num_panels panels of C, whose row stride is c_stride.
// Adds to C if `accumulate` is set.
template <typename Arithmetic, int kRows = kTileRows>
void Multiply(const uint32_t* a, int64_t a_stride, int64_t num_rows, Panels b, int64_t num_panels,
              Steps steps, float* c, int64_t c_stride, bool accumulate) {
  if constexpr (kRows > 1) {
    if (num_rows != kRows) {
      Multiply<Arithmetic, kRows - 1>(a, a_stride, num_rows, b, num_panels, steps, c, c_stride,
                                      accumulate);
      return;
    }
  }
  constexpr int kWide = PanelsPerTile(kRows);
  int64_t j = 0;
  for (; j + kWide <= num_panels; j += kWide, b.panels += kWide, c += kWide * kPanelWidth) {
    Tile<Arithmetic, kRows, kWide>(a, a_stride, b, steps, c, c_stride, accumulate);
  }
  if constexpr (kWide > 1) {
    for (; j < num_panels; ++j, ++b.panels, c += kPanelWidth) {
      Tile<Arithmetic, kRows, 1>(a, a_stride, b, steps, c, c_stride, accumulate);
    }
  }
}

}  // namespace
}  // namespace taopd::cpu::TAOPD_ISA
