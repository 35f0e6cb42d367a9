// The tiles of AMX (TDPBF16PS), for the loops of packed_gemm.h over pairs of bfloat16. The file is
// empty for any other instruction set.
//
// A tile register holds 16 rows of 64 bytes. One instruction adds to 16 rows by 16 outputs the
// products over 32 inputs: the rows come from x as they are, and the weights from a panel, whose 16
// steps are rows at a distance of kStepBytes. Four registers hold sums, two hold rows, two weights.
//
// Rows after the last are cut off by the configuration of the registers, so x is read in place. An
// input after the last is a zero in a copy: a product with it adds nothing to a sum.
#pragma once

#include "kernels/cpu/gemm/packed_tile_isa.h"

#ifdef TAOPD_PAIRS_BY_AMX

namespace taopd::cpu::TAOPD_ISA {
namespace {

constexpr int64_t kAmxRows = 16;               // of a register
constexpr int64_t kAmxSteps = 16;              // of pairs, per instruction
constexpr int64_t kAmxInputs = 2 * kAmxSteps;  // inputs per instruction
constexpr int64_t kAmxRowBytes = 64;           // of a register
constexpr int64_t kAmxOutputs = 16;            // float32 numbers per row of a register
constexpr int64_t kAmxTileBytes = kAmxRows * kAmxRowBytes;
constexpr int64_t kAmxWeightBytes = kAmxSteps * kStepBytes;  // of a panel, per instruction
// The largest block of rows, two registers high.
constexpr int64_t kAmxRowBlock = 2 * kAmxRows;

// The tile registers of this thread, from the first Use to the end of the object.
class AmxRegisters {
 public:
  AmxRegisters() = default;
  AmxRegisters(const AmxRegisters&) = delete;
  AmxRegisters& operator=(const AmxRegisters&) = delete;
  ~AmxRegisters() {
    if (first_ != 0) _tile_release();
  }

  // Gives registers 0, 1 and 4 `first` rows, registers 2, 3 and 5 `second` rows, and the weights in
  // registers 6 and 7 all of theirs. Clears the registers if it changes their shape.
  TAOPD_ALWAYS_INLINE void Use(int64_t first, int64_t second) {
    if (first == first_ && second == second_) return;
    first_ = first;
    second_ = second;
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    const int64_t rows[8] = {first, first, second, second, first, second, kAmxSteps, kAmxSteps};
    for (int i = 0; i < 8; ++i) {
      shapes.row_bytes[i] = kAmxRowBytes;
      shapes.rows[i] = static_cast<uint8_t>(rows[i]);
    }
    // GCC's intrinsic names only the first bytes as read.
    asm volatile("" : : "m"(shapes));
    _tile_loadconfig(&shapes);
  }

 private:
  int64_t first_ = 0, second_ = 0;
};

// Keeps the compiler from moving earlier stores after later loads of tiles: GCC's intrinsics do
// not say that they read memory.
TAOPD_ALWAYS_INLINE void CompleteStores() { asm volatile("" : : : "memory"); }

// Inputs of a block of rows and a panel: `count` times kAmxInputs of them.
struct AmxInputs {
  const char* x;
  int64_t x_row_bytes;   // from one row to the next
  int64_t x_tile_bytes;  // from one instruction's inputs to the next
  const char* weights;
  int64_t count;
};

// Data that is fetched into the second-level cache, `lines` cache lines per instruction's inputs.
struct AmxPrefetch {
  const char* ahead = nullptr;
  int64_t lines = 0;

  TAOPD_ALWAYS_INLINE void Step() {
    for (int64_t i = 0; i < lines; ++i, ahead += kLineBytes) {
      __builtin_prefetch(ahead, /*rw=*/0, /*locality=*/2);
    }
  }
};

// Copies the inputs of a row, or the weights of a panel, after those of the last whole instruction,
// and adds zeros.
TAOPD_ALWAYS_INLINE void CopyLastInputs(const Bfloat16Bits* from, int64_t inputs, char* to) {
  __builtin_memset(to, 0, kAmxRowBytes);
  __builtin_memcpy(to, from, inputs * static_cast<int64_t>(sizeof(Bfloat16Bits)));
}
TAOPD_ALWAYS_INLINE void CopyLastWeights(const char* from, int64_t inputs, char* to) {
  const int64_t bytes = CeilDiv(inputs, 2) * kStepBytes;
  __builtin_memcpy(to, from, bytes);
  __builtin_memset(to + bytes, 0, kAmxWeightBytes - bytes);
}

// Adds the products of 17 to 32 rows and 32 outputs to registers 0 to 3.
TAOPD_ALWAYS_INLINE void AddTallTiles(AmxInputs in, AmxPrefetch* prefetch) {
  CompleteStores();
  const int64_t lower = kAmxRows * in.x_row_bytes;
  for (int64_t i = 0; i < in.count; ++i) {
    prefetch->Step();
    _tile_loadd(6, in.weights, kStepBytes);
    _tile_loadd(4, in.x, in.x_row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, in.weights + kAmxRowBytes, kStepBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, in.x + lower, in.x_row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    in.x += in.x_tile_bytes;
    in.weights += kAmxWeightBytes;
  }
}

// Adds the products of up to 16 rows and 64 outputs to registers 0 to 3.
TAOPD_ALWAYS_INLINE void AddWideTiles(AmxInputs in, AmxPrefetch* prefetch) {
  CompleteStores();
  for (int64_t i = 0; i < in.count; ++i) {
    prefetch->Step();
    _tile_loadd(4, in.x, in.x_row_bytes);
    _tile_loadd(6, in.weights, kStepBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, in.weights + kAmxRowBytes, kStepBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, in.weights + 2 * kAmxRowBytes, kStepBytes);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, in.weights + 3 * kAmxRowBytes, kStepBytes);
    _tile_dpbf16ps(3, 4, 7);
    in.x += in.x_tile_bytes;
    in.weights += kAmxWeightBytes;
  }
}

TAOPD_ALWAYS_INLINE void ZeroSums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Calls use(0, c), use(1, c'), use(2, c''), use(3, c''') with the places of four sums in C. The
// numbers of registers must be constants.
#define TAOPD_FOR_SUMS(use, c, second, third, fourth) \
  use(0, c, stride);                                  \
  use(1, (c) + (second), stride);                     \
  use(2, (c) + (third), stride);                      \
  use(3, (c) + (fourth), stride)

// The sums of a block of rows and one panel over some inputs.
struct AmxBlock {
  AmxInputs whole, rest;  // `rest` has a count of 0 or 1
  bool from_c;            // the sums continue from C
  float* c;
  int64_t c_stride;
};

// Computes 17 to 32 rows and the first `columns` outputs, which are a multiple of 32.
TAOPD_ALWAYS_INLINE void MultiplyTall(const AmxBlock& block, int64_t columns,
                                      AmxPrefetch* prefetch) {
  const int64_t stride = block.c_stride * static_cast<int64_t>(sizeof(float));
  const int64_t lower = kAmxRows * block.c_stride;
  for (int64_t n = 0; n < columns; n += 2 * kAmxOutputs) {
    float* const c = block.c + n;
    if (block.from_c) {
      CompleteStores();
      TAOPD_FOR_SUMS(_tile_loadd, c, kAmxOutputs, lower, lower + kAmxOutputs);
    } else {
      ZeroSums();
    }
    for (AmxInputs in : {block.whole, block.rest}) {
      in.weights += n * 4;
      AddTallTiles(in, prefetch);
    }
    TAOPD_FOR_SUMS(_tile_stored, c, kAmxOutputs, lower, lower + kAmxOutputs);
  }
}

// Computes up to 16 rows and all outputs.
TAOPD_ALWAYS_INLINE void MultiplyWide(const AmxBlock& block, AmxPrefetch* prefetch) {
  const int64_t stride = block.c_stride * static_cast<int64_t>(sizeof(float));
  if (block.from_c) {
    CompleteStores();
    TAOPD_FOR_SUMS(_tile_loadd, block.c, kAmxOutputs, 2 * kAmxOutputs, 3 * kAmxOutputs);
  } else {
    ZeroSums();
  }
  AddWideTiles(block.whole, prefetch);
  AddWideTiles(block.rest, prefetch);
  TAOPD_FOR_SUMS(_tile_stored, block.c, kAmxOutputs, 2 * kAmxOutputs, 3 * kAmxOutputs);
}

// The sums of up to 16 rows and one panel whose first `columns` outputs exist in C.
class AmxColumns {
 public:
  AmxColumns(float* c, int64_t c_stride, int64_t rows, int64_t columns, bool from_c)
      : c_(c), c_stride_(c_stride), rows_(rows), columns_(columns), from_c_(from_c) {}

  // Sets registers 0 to 3 to the numbers from which the sums start.
  TAOPD_ALWAYS_INLINE void Start() {
    if (!from_c_) return ZeroSums();
    if (columns_ < kWidth) {
      for (int64_t m = 0; m < rows_; ++m) {
        for (int64_t n = 0; n < kWidth; ++n) {
          whole_[m * kWidth + n] = n < columns_ ? c_[m * c_stride_ + n] : 0;
        }
      }
    }
    const int64_t stride = place_stride() * static_cast<int64_t>(sizeof(float));
    CompleteStores();
    TAOPD_FOR_SUMS(_tile_loadd, place(), kAmxOutputs, 2 * kAmxOutputs, 3 * kAmxOutputs);
  }

  TAOPD_ALWAYS_INLINE void Finish() {
    const int64_t stride = place_stride() * static_cast<int64_t>(sizeof(float));
    TAOPD_FOR_SUMS(_tile_stored, place(), kAmxOutputs, 2 * kAmxOutputs, 3 * kAmxOutputs);
    if (columns_ >= kWidth) return;
    for (int64_t m = 0; m < rows_; ++m) {
      for (int64_t n = 0; n < columns_; ++n) c_[m * c_stride_ + n] = whole_[m * kWidth + n];
    }
  }

 private:
  float* place() { return columns_ < kWidth ? whole_ : c_; }
  int64_t place_stride() const { return columns_ < kWidth ? kWidth : c_stride_; }

  float* const c_;
  const int64_t c_stride_, rows_, columns_;
  const bool from_c_;
  alignas(kLineBytes) float whole_[kAmxRows * kWidth];
};

#undef TAOPD_FOR_SUMS

// Computes one block of rows and one panel whose first `columns` outputs exist in C.
inline void MultiplyAmxBlock(AmxBlock block, int64_t rows, int64_t columns, AmxRegisters* registers,
                             AmxPrefetch* prefetch) {
  alignas(kLineBytes) float whole[kAmxRowBlock * kWidth];
  float* const c = block.c;
  const int64_t c_stride = block.c_stride;
  if (columns < kWidth) {
    for (int64_t m = 0; block.from_c && m < rows; ++m) {
      for (int64_t n = 0; n < kWidth; ++n) {
        whole[m * kWidth + n] = n < columns ? c[m * c_stride + n] : 0;
      }
    }
    block.c = whole;
    block.c_stride = kWidth;
  }
  if (rows > kAmxRows) {
    registers->Use(kAmxRows, rows - kAmxRows);
    MultiplyTall(block, columns <= kWidth / 2 ? kWidth / 2 : kWidth, prefetch);
  } else {
    registers->Use(rows, rows);
    MultiplyWide(block, prefetch);
  }
  if (columns >= kWidth) return;
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < columns; ++n) c[m * c_stride + n] = whole[m * kWidth + n];
  }
}
}  // namespace
}  // namespace taopd::cpu::TAOPD_ISA

#endif
