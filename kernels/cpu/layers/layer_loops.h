// The loops over one row of taopd/layers/layers.h and over one block of taopd/layers/adamw.h.
//
// One source (layer_loops_isa.h) is compiled for several instruction sets and the widest that the
// processor has is chosen once; all give the same bits, as those of row_math.h. `Row` pointers are
// float32 or bfloat16, by the table that a function is taken from. No alignment is required.
#pragma once

#include <cstdint>

#include "taopd/base/device.h"
#include "taopd/layers/adamw_math.h"

namespace taopd::cpu {

using Row = const void*;
using MutableRow = void*;

struct LayerLoops {
  const char* name;

  // Returns 1 / rms. added and sum may be null together.
  float (*rms_norm)(Row x, Row added, Row weight, int64_t n, float eps, MutableRow sum,
                    MutableRow normed);
  // partial_weight[n] (float32) += d_normed x / rms. d_sum may be null.
  void (*rms_norm_backward)(Row x, Row weight, float inverse_rms, Row d_normed, Row d_sum,
                            int64_t n, MutableRow d_x, float* partial_weight);
  // One head. Returns 1 / rms; without a weight there is no norm, and it is 1.
  float (*rotate)(Row x, Row weight, Row cos, Row sin, int64_t n, float eps, MutableRow out);
  // scratch: n numbers.
  void (*rotate_backward)(Row x, Row weight, float inverse_rms, Row cos, Row sin, Row d_out,
                          int64_t n, MutableRow d_x, float* scratch, float* partial_weight);
  void (*swiglu)(Row gate, Row up, int64_t n, MutableRow y);
  void (*swiglu_backward)(Row gate, Row up, Row d_y, int64_t n, MutableRow d_gate, MutableRow d_up);
  // to[i] = the float32 numbers in this table's type.
  void (*narrow)(const float* from, int64_t n, MutableRow to);
  double (*sum_of_squares)(Row x, int64_t n);
  // The gradient is of this table's type; bfloat16 may be null. keep = 1 - lr weight_decay.
  void (*adamw)(const AdamWFactors<float>& factors, float keep, Row gradient, int64_t n,
                float* master, float* exp_avg, float* exp_avg_sq, uint16_t* bfloat16);
};

// The widest set that this processor has.
const LayerLoops& BestLayerLoops(DataType type);

// Every set that this processor has, narrowest first; for tests.
int NumLayerLoops();
const LayerLoops& LayerLoopsAt(int index, DataType type);

}  // namespace taopd::cpu
