// Expands coded panels (coded_panel.h) into plain ones, for the loops of packed_gemm_isa.h, which
// includes this file within its namespace of one instruction set.
#pragma once

#ifdef __AVX512BF16__

// Expands one step into the four vectors of a plain one. `high_bytes` contains the panel's high
// bytes twice.
TAOPD_ALWAYS_INLINE void ExpandWords(__m256i high_bytes, const uint8_t* step, Words (&w)[4]) {
  // Uses a mask of ones, because GCC takes the plain intrinsic for a use of an uninitialized value.
  const __m512i table = _mm512_maskz_broadcast_i64x4(0xff, high_bytes);
  const __m512i lower_halves = _mm512_set1_epi8(0xf);
  const __m512i codes = _mm512_loadu_si512(step);
  const __m512i half_codes[2] = {_mm512_and_si512(codes, lower_halves),
                                 _mm512_and_si512(_mm512_srli_epi16(codes, 4), lower_halves)};
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m512i high = _mm512_shuffle_epi8(table, half_codes[half]);
    const __m512i low = _mm512_loadu_si512(step + 64 + 64 * half);
    w[2 * half] = reinterpret_cast<Words>(_mm512_unpacklo_epi8(low, high));
    w[2 * half + 1] = reinterpret_cast<Words>(_mm512_unpackhi_epi8(low, high));
  }
}

#endif

#ifdef __AVX2__

struct HighByteTable {
  explicit TAOPD_ALWAYS_INLINE HighByteTable(const uint8_t* high_bytes)
      : bytes(_mm256_broadcastsi128_si256(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(high_bytes)))) {}
  __m256i bytes;
};

TAOPD_ALWAYS_INLINE __m256i LoadBytes(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// Expands 32 codes, each in the lower half of its byte, and 32 low bytes into 32 numbers.
TAOPD_ALWAYS_INLINE void ExpandBytes(const HighByteTable& table, __m256i codes,
                                     const uint8_t* low_bytes, char* to) {
  const __m256i high = _mm256_shuffle_epi8(table.bytes, codes);
  const __m256i low = LoadBytes(low_bytes);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_unpacklo_epi8(low, high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kStepBytes / 4),
                      _mm256_unpackhi_epi8(low, high));
}

TAOPD_ALWAYS_INLINE void ExpandStep(const HighByteTable& table, const uint8_t* step, char* to) {
#ifdef __AVX512BF16__
  Words w[4];
  ExpandWords(table.bytes, step, w);
  __builtin_memcpy(to, w, sizeof(w));
#else
  const __m256i lower_halves = _mm256_set1_epi8(0xf);
#pragma GCC unroll 2
  for (int64_t part = 0; part < 64; part += 32) {
    const __m256i codes = LoadBytes(step + part);
    ExpandBytes(table, _mm256_and_si256(codes, lower_halves), step + 64 + part, to + part);
    ExpandBytes(table, _mm256_and_si256(_mm256_srli_epi16(codes, 4), lower_halves),
                step + 128 + part, to + kStepBytes / 2 + part);
  }
#endif
}

#else

struct HighByteTable {
  explicit TAOPD_ALWAYS_INLINE HighByteTable(const uint8_t* high_bytes) : bytes(high_bytes) {}
  const uint8_t* bytes;
};

TAOPD_ALWAYS_INLINE void ExpandStep(const HighByteTable& table, const uint8_t* step, char* to) {
  for (int64_t half = 0; half < 2; ++half) {
    const uint8_t* const low_bytes = step + 64 + 64 * half;
    for (int64_t p = 0; p < 64; ++p) {
      const int64_t i = 64 * half + 8 * (p / 16) + p % 8 + 32 * (p / 8 % 2);
      const uint8_t high = table.bytes[step[p] >> (4 * half) & 0xf];
      const Bfloat16Bits number = static_cast<Bfloat16Bits>(high << 8 | low_bytes[p]);
      __builtin_memcpy(to + i * static_cast<int64_t>(sizeof(number)), &number, sizeof(number));
    }
  }
}

#endif

// Expands the steps of a panel in their order.
class StepExpander {
 public:
  explicit TAOPD_ALWAYS_INLINE StepExpander(const CodedPanel& panel)
      : table_(panel.high_bytes), steps_(panel.steps), exception_(panel.exceptions) {}

  // Expands the next num_steps steps into `to` [num_steps, kStepBytes].
  TAOPD_ALWAYS_INLINE void Expand(int64_t num_steps, char* to) {
    const uint8_t* from = position();
    for (int64_t step = 0; step < num_steps; ++step, from += kCodedStepBytes) {
      ExpandStep(table_, from, to + step * kStepBytes);
    }
    const int64_t first = next_step_ * kStepNumbers;
    next_step_ += num_steps;
    for (; exception_->position < next_step_ * kStepNumbers; ++exception_) {
      __builtin_memcpy(to + (exception_->position - first) * sizeof(Bfloat16Bits),
                       &exception_->number, sizeof(Bfloat16Bits));
    }
  }

  // Both continue at `step`; PassTo drops the exceptions before it. SkipTo REQUIRES:
  // step <= NextException().
  TAOPD_ALWAYS_INLINE void SkipTo(int64_t step) { next_step_ = step; }
  TAOPD_ALWAYS_INLINE void PassTo(int64_t step) {
    next_step_ = step;
    while (NextException() < step) ++exception_;
  }
  // Returns the step of the next exception, or a number above every step if there is none.
  TAOPD_ALWAYS_INLINE int64_t NextException() const { return exception_->position / kStepNumbers; }
  // The next step, its address, and the high bytes.
  TAOPD_ALWAYS_INLINE int64_t step() const { return next_step_; }
  TAOPD_ALWAYS_INLINE const uint8_t* position() const {
    return steps_ + next_step_ * kCodedStepBytes;
  }
  TAOPD_ALWAYS_INLINE const HighByteTable& table() const { return table_; }

 private:
  HighByteTable table_;
  const uint8_t* steps_;
  const CodedException* exception_;
  int64_t next_step_ = 0;
};
