#include "kernels/cpu/layers/fused_projections.h"

#include "kernels/cpu/layers/layer_loops.h"
#include "kernels/cpu/layers/rows.h"

namespace taopd::cpu {

void Run(const RotateFusedHeads& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  const int64_t D = p.head_size;
  const int64_t row_size = (p.num_heads + 2 * p.num_kv_heads) * D;
  parallel_for(p.num_rows, RowsPerTask(row_size), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Row cos = At(p.cos_TD, t, D, p.dtype), sin = At(p.sin_TD, t, D, p.dtype);
      const auto rotate = [&](int64_t first_column, int64_t num_heads, const void* norm,
                              void* out) {
        const Row heads = At(At(p.qkv_TC, t, row_size, p.dtype), 1, first_column, p.dtype);
        for (int64_t head = 0; head < num_heads; ++head) {
          loops.rotate(At(heads, head, D, p.dtype), norm, cos, sin, D, p.eps,
                       At(out, t * num_heads + head, D, p.dtype));
        }
      };
      rotate(0, p.num_heads, p.q_norm_D, p.queries_TND);
      rotate(p.num_heads * D, p.num_kv_heads, p.k_norm_D, p.keys_TKD);
    }
  });
}

void Run(const FusedSwiGlu& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  const int64_t I = p.size;
  parallel_for(p.num_rows, RowsPerTask(3 * I), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      loops.swiglu(At(p.gate_up_T2I, 2 * t, I, p.dtype), At(p.gate_up_T2I, 2 * t + 1, I, p.dtype),
                   I, At(p.y_TI, t, I, p.dtype));
    }
  });
}

void Run(const FusedSwiGluBackward& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  const int64_t I = p.size;
  parallel_for(p.num_rows, RowsPerTask(3 * I), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      loops.swiglu_backward(At(p.gate_up_T2I, 2 * t, I, p.dtype),
                            At(p.gate_up_T2I, 2 * t + 1, I, p.dtype), At(p.d_y_TI, t, I, p.dtype),
                            I, At(p.d_gate_up_T2I, 2 * t, I, p.dtype),
                            At(p.d_gate_up_T2I, 2 * t + 1, I, p.dtype));
    }
  });
}

}  // namespace taopd::cpu
