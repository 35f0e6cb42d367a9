// The loops of row_math.h, compiled once per instruction set (kernels/cpu/isa/isa.h).
//
// Vectors are as long as a register, because the compiler splits comparisons of longer ones into
// single elements.
#pragma once

#include <stdint.h>

#include "kernels/cpu/isa/compiled_isa.h"
#include "kernels/cpu/math/exp_parts.h"
#include "kernels/cpu/math/row_math.h"

namespace taopd::cpu::TAOPD_ISA {
namespace {

// Rows are summed in 16 lanes on every instruction set.
constexpr int kSumLanes = 16;
constexpr int kParts = kSumLanes / kLanes;
constexpr int64_t kBlock = 1024;  // float32 partial sums: 64 additions per lane

typedef uint16_t Shorts __attribute__((vector_size(kLanes * sizeof(uint16_t))));

constexpr float kInfinity = __builtin_inff();

// exp(x) for x <= 0, within 2 ulp; 0 below kSmallestExpArgument.
TAOPD_ALWAYS_INLINE void ExpOfNonPositive(Floats* x_and_exp) {
  const Floats x = *x_and_exp;
  const Ints is_zero = x < kSmallestExpArgument;
  const Floats bounded = is_zero ? Floats{} : x;  // a NaN stays
  Floats n, e;
  ExpParts(&bounded, &n, &e);
  // The integer of a NaN is unspecified, but its product with anything is NaN.
  const Ints exponent = __builtin_convertvector(n, Ints);
  const Floats power = (Floats)((exponent + 127) << 23);
  *x_and_exp = is_zero ? Floats{} : e * power;
}

// Loads the last, partial vector and fills it up with `filler`.
TAOPD_ALWAYS_INLINE void LoadPart(Floats* lanes, const float* z, int64_t num, float filler) {
  for (int i = 0; i < kLanes; ++i) (*lanes)[i] = i < num ? z[i] : filler;
}

// Loads vector i of kParts, where num numbers are left.
TAOPD_ALWAYS_INLINE void LoadRow(Floats* lanes, const float* z, int64_t num, int i) {
  if (num >= kSumLanes) {
    Load(lanes, z + i * kLanes);
  } else {
    LoadPart(lanes, z + i * kLanes, num - i * kLanes, -kInfinity);
  }
}

float Max(const float* z, int64_t n) {
  Floats high[kParts];
  for (int p = 0; p < kParts; ++p) high[p] = Floats{} - kInfinity;
  for (int64_t i = 0; i < n; i += kSumLanes) {
    for (int p = 0; p < kParts; ++p) {
      Floats v;
      LoadRow(&v, z + i, n - i, p);
      high[p] = v > high[p] ? v : high[p];
    }
  }
  float result = -kInfinity;
  for (int p = 0; p < kParts; ++p) {
    for (int lane = 0; lane < kLanes; ++lane) {
      result = high[p][lane] > result ? high[p][lane] : result;
    }
  }
  return result;
}

void TileMax(const float* z, int64_t n, float* tile_max) {
  for (int64_t i = 0; i < n; i += kTileSize) {
    *tile_max++ = Max(z + i, n - i < kTileSize ? n - i : kTileSize);
  }
}

ExpSums SumExp(const float* z, int64_t n, float shift, float scale) {
  ExpSums sums;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = n - begin < kBlock ? n : begin + kBlock;
    Floats sum[kParts] = {};
    Floats sum_x[kParts] = {};
    for (int64_t i = begin; i < end; i += kSumLanes) {
      for (int p = 0; p < kParts; ++p) {
        Floats v;
        LoadRow(&v, z + i, end - i, p);
        const Floats x = (v - shift) * scale;
        Floats e = x;
        ExpOfNonPositive(&e);
        sum[p] += e;
        sum_x[p] += e * (x < -128.0f ? Floats{} : x);  // not 0 * -inf
      }
    }
    for (int p = 0; p < kParts; ++p) {
      for (int lane = 0; lane < kLanes; ++lane) {
        sums.sum_exp += sum[p][lane];
        sums.sum_exp_x += sum_x[p][lane];
      }
    }
  }
  return sums;
}

void ColumnMax(const float* block, int64_t stride, int64_t num, int64_t columns, float* max) {
  for (int64_t n = 0; n < columns; n += kLanes) {
    Floats high = Floats{} - kInfinity;
    for (int64_t v = 0; v < num; ++v) {
      Floats z;
      Load(&z, block + v * stride + n);
      high = z > high ? z : high;
    }
    for (int64_t lane = 0; lane < kLanes && n + lane < columns; ++lane) max[n + lane] = high[lane];
  }
}

void FindColumnReferences(const ColumnReferences& job) {
  constexpr double kLog2 = 0.693147180559945309417;
  // Up to here, exponents are below 2^24, where every integer is a float32.
  constexpr double kExact = 8388608;
  for (int64_t n = 0; n < job.columns; ++n) {
    const float max = job.max[n];
    const double scaled = static_cast<double>(max) * job.scale;
    const double exponent = __builtin_ceil(scaled / kLog2);
    const double above = scaled - exponent * kLog2;
    const float offset = static_cast<float>(above < 0 ? above : 0.0);
    const bool none = max == -kInfinity;
    job.shift[n] = none ? 0 : max;
    job.offset[n] = none ? 0 : offset;
    job.exponent[n] = static_cast<float>(exponent);
  }
  for (int64_t n = 0; n < job.columns; ++n) {
    const double scaled = static_cast<double>(job.max[n]) * job.scale;
    if (!(scaled > kExact || scaled < -kExact) || job.max[n] == -kInfinity) continue;
    // The least float32 that is not below the exponent.
    const double least = __builtin_ceil(scaled / kLog2);
    float exponent = static_cast<float>(least);
    if (exponent < least) exponent = __builtin_nextafterf(exponent, kInfinity);
    const double above = scaled - exponent * kLog2;
    const double offset = above < 0 ? above : 0.0;
    // Logits above 1e8, where neighboring float32 numbers are many nats apart, are not
    // probabilities.
    job.offset[n] = offset < -80 ? __builtin_nanf("") : static_cast<float>(offset);
    job.exponent[n] = exponent;
  }
}

// Rounds to the nearest bfloat16, ties to even; a NaN stays a NaN.
TAOPD_ALWAYS_INLINE void StoreBfloat16(uint16_t* to, const Floats* lanes) {
  const Ints bits = (Ints)*lanes;
  const Ints rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Ints kept = *lanes == *lanes ? rounded : Ints{} + 0x7fc0;
  const Shorts narrow = __builtin_convertvector(kept, Shorts);
  Store(to, &narrow);
}

// The rows that are summed before they are added to the column's sum, so that a large sum is
// rounded less often.
constexpr int64_t kRowsPerSum = 16;

enum class Written { kNothing, kFloat32, kBfloat16 };

template <Written kWritten>
void ColumnExpLoop(const ColumnExp& job) {
  for (int64_t n = 0; n < job.columns; n += kLanes) {
    const int64_t present = job.columns - n < kLanes ? job.columns - n : kLanes;
    Floats shift, offset;
    LoadPart(&shift, job.shift + n, present, 0);
    LoadPart(&offset, job.offset + n, present, 0);
    Floats sum = Floats{};
    Floats sum_x = Floats{};
    for (int64_t begin = 0; begin < job.num; begin += kRowsPerSum) {
      const int64_t end = job.num - begin < kRowsPerSum ? job.num : begin + kRowsPerSum;
      Floats part = Floats{};
      Floats part_x = Floats{};
      for (int64_t v = begin; v < end; ++v) {
        Floats z;
        Load(&z, job.block + v * job.stride + n);
        const Floats x = (z - shift) * job.scale + offset;
        Floats e = x;
        ExpOfNonPositive(&e);
        part += e;
        part_x += e * (x < -128.0f ? Floats{} : x);  // not 0 * -inf
        const int64_t at = v * job.columns + n;
        if constexpr (kWritten == Written::kFloat32) {
          float* to = static_cast<float*>(job.exps) + at;
          if (present == kLanes) {
            Store(to, &e);
          } else {
            for (int64_t lane = 0; lane < present; ++lane) to[lane] = e[lane];
          }
        } else if constexpr (kWritten == Written::kBfloat16) {
          uint16_t* to = static_cast<uint16_t*>(job.exps) + at;
          if (present == kLanes) {
            StoreBfloat16(to, &e);
          } else {
            uint16_t whole[kLanes];
            StoreBfloat16(whole, &e);
            for (int64_t lane = 0; lane < present; ++lane) to[lane] = whole[lane];
          }
        }
      }
      sum += part;
      sum_x += part_x;
    }
    for (int64_t lane = 0; lane < present; ++lane) {
      job.sum_exp[n + lane] = sum[lane];
      job.sum_exp_x[n + lane] = sum_x[lane];
    }
  }
}

void ColumnExps(const ColumnExp& job) {
  if (job.exps == nullptr) {
    ColumnExpLoop<Written::kNothing>(job);
  } else if (job.bfloat16) {
    ColumnExpLoop<Written::kBfloat16>(job);
  } else {
    ColumnExpLoop<Written::kFloat32>(job);
  }
}

// Loads entry j of the support: its logits, NaNs as -inf, and its ids.
TAOPD_ALWAYS_INLINE void LoadEntry(const SupportTopK& job, int64_t j, int64_t n, Floats* logits,
                                   Ints* ids) {
  Load(logits, job.support_logits + j * kRankedRows + n);
  *logits = *logits == *logits ? *logits : Floats{} - kInfinity;
  Load(ids, job.ids + j * kRankedRows + n);
}

// Orders the supports of kLanes rows. Writes each entry's place to job.in_top_k.
TAOPD_ALWAYS_INLINE void OrderSupport(const SupportTopK& job, int64_t n) {
  for (int64_t j = 0; j < job.k; ++j) {
    Floats own, other;
    Ints id, other_id, place{};
    LoadEntry(job, j, n, &own, &id);
    for (int64_t i = 0; i < job.k; ++i) {
      LoadEntry(job, i, n, &other, &other_id);
      place -= (other > own) | ((other == own) & (other_id < id));
    }
    Store(job.in_top_k + j * kRankedRows + n, &place);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t at = place[lane] * kRankedRows + n + lane;
      job.ordered_logits[at] = own[lane];
      job.ordered_ids[at] = id[lane];
    }
  }
}

// Counts the tokens outside of the support that come before one entry of each row.
TAOPD_ALWAYS_INLINE void CountBefore(const SupportTopK& job, int64_t n, const Floats* own,
                                     const Ints* id, Ints* count) {
  const Ints finite = *own > Floats{} - kInfinity;
  *count = Ints{};
  for (int64_t v = 0; v < job.num; ++v) {
    Floats z;
    Load(&z, job.logits + v * job.stride + n);
    *count -= (z > *own) | ((z == *own) & finite & (static_cast<int32_t>(v) < *id));
  }
}

// The entries of a support that are in the top k come first in its order, so a binary search finds
// how many there are.
void FindSupportTopK(const SupportTopK& job) {
  for (int64_t n = 0; n < kRankedRows; n += kLanes) {
    OrderSupport(job, n);
    Ints sizes, least{};
    Load(&sizes, job.sizes + n);
    Ints most = sizes;
    for (int64_t left = job.k; left > 0; left /= 2) {
      const Ints middle = (least + most) >> 1;
      Floats own;
      Ints id, before;
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t entry = middle[lane] < job.k ? middle[lane] : job.k - 1;
        own[lane] = job.ordered_logits[entry * kRankedRows + n + lane];
        id[lane] = job.ordered_ids[entry * kRankedRows + n + lane];
      }
      CountBefore(job, n, &own, &id, &before);
      const Ints is_inside = before + middle < sizes;
      least = is_inside ? middle + 1 : least;
      most = is_inside ? most : middle;
    }
    for (int64_t j = 0; j < job.k; ++j) {
      Ints place;
      Load(&place, job.in_top_k + j * kRankedRows + n);
      place = place < least;
      Store(job.in_top_k + j * kRankedRows + n, &place);
    }
  }
}

constexpr int kDoubles = kLanes / 2;
typedef double Doubles __attribute__((vector_size(kDoubles * sizeof(double))));
typedef uint64_t LongBits __attribute__((vector_size(kDoubles * sizeof(uint64_t))));

// Like ExpParts, in double. The polynomial of degree 12 has a remainder below 2e-16 of the value.
TAOPD_ALWAYS_INLINE void ExpOfVector(Doubles* x_and_exp) {
  constexpr double kLog2e = 1.44269504088896340736;
  constexpr double kLog2High = 0x1.62e42feep-1;  // 32 bits: n * kLog2High is exact
  constexpr double kLog2Low = 0x1.a39ef35793c76p-33;
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  constexpr double kSmallest = -708;
  const Doubles x = *x_and_exp;
  const Doubles bounded = x < kSmallest ? Doubles{} + kSmallest : x;  // a NaN stays
  const Doubles shifted = bounded * kLog2e + kRound;
  const Doubles n = shifted - kRound;
  const Doubles r = (bounded - n * kLog2High) - n * kLog2Low;
  // Estrin's scheme: pairs of terms do not wait for each other.
  const Doubles r2 = r * r;
  const Doubles r4 = r2 * r2;
  const Doubles from_2 = (0.5 + r * (1.0 / 6)) + (1.0 / 24 + r * (1.0 / 120)) * r2;
  const Doubles from_6 = (1.0 / 720 + r * (1.0 / 5040)) + (1.0 / 40320 + r * (1.0 / 362880)) * r2;
  const Doubles from_10 = (1.0 / 3628800 + r * (1.0 / 39916800)) + r2 * (1.0 / 479001600);
  const Doubles sum = from_2 + (from_6 + from_10 * r4) * r4;
  const Doubles e = sum * r2 + r + 1.0;
  // The last bits of `shifted` are n; the shift drops the bits before them.
  const Doubles power = (Doubles)(((LongBits)shifted + 1023) << 52);
  *x_and_exp = x < kSmallest ? Doubles{} : e * power;
}

void ExpOfDoubles(const double* x, int32_t num, double* y) {
  for (int32_t j = 0; j < num; j += kDoubles) {
    const size_t size = (num - j < kDoubles ? num - j : kDoubles) * sizeof(double);
    Doubles lanes{};
    __builtin_memcpy(&lanes, x + j, size);
    ExpOfVector(&lanes);
    __builtin_memcpy(y + j, &lanes, size);
  }
}

int64_t CountAtLeast(const float* z, int64_t n, float threshold) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = n - begin < kBlock ? n : begin + kBlock;
    int32_t in_block = 0;
    for (int64_t i = begin; i < end; ++i) in_block += z[i] >= threshold;
    count += in_block;
  }
  return count;
}

}  // namespace

const RowMath kRowMath = {Max,          TileMax,         SumExp,
                          CountAtLeast, ColumnMax,       FindColumnReferences,
                          ColumnExps,   FindSupportTopK, ExpOfDoubles};

}  // namespace taopd::cpu::TAOPD_ISA
