// The loops over one row of scores in the attention of whole sequences (causal_attention.h).
//
// One source (causal_rows_isa.h) is compiled for several instruction sets (kernels/cpu/isa/isa.h).
// Sums go to 16 lanes, and the lanes to one number in a fixed order, so a row's result depends only
// on its own numbers and its range. No alignment is required. The functions keep no state; any
// thread may call them.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa/isa.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu {

struct CausalRows {
  // Turns the scores s[begin, end) into weights exp(scale (s - max)), where max is the largest of
  // them, and sets s[0, begin) and s[end, n) to 0. Sets *sum to the sum of the weights, and returns
  // log sum exp(scale s). REQUIRES: begin < end <= n and scale > 0.
  float (*softmax)(float* s, int64_t begin, int64_t end, int64_t n, float scale, float* sum);

  // Computes the gradient of the scores. Turns s into p = exp(scale s - log_sum_exp) and dp, the
  // gradient of p, into p (dp - delta) scale; both become 0 outside of [begin, end).
  void (*gradient)(float* s, float* dp, int64_t begin, int64_t end, int64_t n, float scale,
                   float log_sum_exp, float delta);

  // Returns sum a[i] b[i].
  float (*dot)(const float* a, const float* b, int64_t n);

  // x[i] *= factor.
  void (*scale)(float* x, float factor, int64_t n);
};

TAOPD_DECLARE_ISA_TABLES(CausalRows, kCausalRows)

// Returns the table of one instruction set. REQUIRES: IsSupported(set).
TAOPD_ALWAYS_INLINE const CausalRows& CausalRowsOf(InstructionSet set) {
  return TAOPD_ISA_TABLE(set, kCausalRows);
}

}  // namespace taopd::cpu
