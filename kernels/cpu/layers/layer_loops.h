// The loops over one row of taopd/layers/norms_and_swiglu.h and over one block of
// taopd/layers/adamw.h.
//
// One source (layer_loops_isa.h) is compiled for several instruction sets (kernels/cpu/isa/isa.h).
// All of them give the same bits, as in row_math.h. There is one table of functions for float32 and
// one for bfloat16; `Row` pointers have the type of the table. No alignment is required. The
// functions keep no state; any thread may call them.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa/isa.h"
#include "taopd/base/always_inline.h"
#include "taopd/base/data_type.h"
#include "taopd/layers/adamw_math.h"

namespace taopd::cpu {

using Row = const void*;
using MutableRow = void*;

// Consecutive elements of a parameter and its state.
struct AdamWElements {
  int64_t size = 0;
  Row gradient = nullptr;
  float* master = nullptr;       // null: the update goes to `bfloat16`, rounded stochastically
  MutableRow exp_avg = nullptr;  // the moments are either bfloat16 or float32
  MutableRow exp_avg_sq = nullptr;
  bool bfloat16_moments = false;
  uint64_t random_key = 0;       // AdamWRandomKey, for bfloat16 moments
  uint64_t weight_key = 0;       // AdamWWeightKey, for weights without a master
  uint32_t first_element = 0;    // argument of AdamWRandomBits
  uint16_t* bfloat16 = nullptr;  // the bfloat16 parameter; null if the parameter is float32
};

struct LayerLoops {
  // RmsNormForward of one row. Returns 1 / rms. added and sum may both be null.
  float (*rms_norm)(Row x, Row added, Row weight, int64_t n, float eps, MutableRow sum,
                    MutableRow normed);
  // RmsNormBackward of one row. Adds d_normed x / rms to partial_weight[n]. d_sum may be null.
  void (*rms_norm_backward)(Row x, Row weight, float inverse_rms, Row d_normed, Row d_sum,
                            int64_t n, MutableRow d_x, float* partial_weight);
  // HeadsForward of one head. Returns 1 / rms. Without a weight there is no norm, and it returns 1.
  float (*rotate)(Row x, Row weight, Row cos, Row sin, int64_t n, float eps, MutableRow out);
  // HeadsBackward of one head. `scratch` holds n numbers, whose contents are overwritten.
  void (*rotate_backward)(Row x, Row weight, float inverse_rms, Row cos, Row sin, Row d_out,
                          int64_t n, MutableRow d_x, float* scratch, float* partial_weight);
  void (*swiglu)(Row gate, Row up, int64_t n, MutableRow y);
  void (*swiglu_backward)(Row gate, Row up, Row d_y, int64_t n, MutableRow d_gate, MutableRow d_up);
  // Rounds float32 numbers to this table's type.
  void (*narrow)(const float* from, int64_t n, MutableRow to);
  double (*sum_of_squares)(Row x, int64_t n);
  // One AdamW update. The gradient has this table's type. keep = 1 - lr weight_decay.
  void (*adamw)(const AdamWFactors<float>& factors, float keep, const AdamWElements& elements);
};

TAOPD_DECLARE_ISA_TABLES(LayerLoops, kFloat32Loops)
TAOPD_DECLARE_ISA_TABLES(LayerLoops, kBfloat16Loops)

// Returns the table of this type for one instruction set. REQUIRES: IsSupported(set).
TAOPD_ALWAYS_INLINE const LayerLoops& LayerLoopsOf(InstructionSet set, DataType type) {
  return type == DataType::kFloat32 ? TAOPD_ISA_TABLE(set, kFloat32Loops)
                                    : TAOPD_ISA_TABLE(set, kBfloat16Loops);
}
// Returns the table of this type for the widest instruction set.
TAOPD_ALWAYS_INLINE const LayerLoops& BestLayerLoops(DataType type) {
  return LayerLoopsOf(WidestInstructionSet(), type);
}

}  // namespace taopd::cpu
