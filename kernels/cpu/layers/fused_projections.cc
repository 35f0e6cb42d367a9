#include "kernels/cpu/layers/fused_projections.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/layers/layer_loops.h"
#include "kernels/cpu/layers/rows.h"
#include "taopd/layers/norms_and_swiglu.h"

namespace taopd::cpu {

void RotateFusedHeads(const FusedRotation& p, const ParallelFor& parallel_for) {
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
          const float inverse_rms = loops.rotate(At(heads, head, D, p.dtype), norm, cos, sin, D,
                                                 p.eps, At(out, t * num_heads + head, D, p.dtype));
          if (p.inverse_rms_TA == nullptr) continue;
          p.inverse_rms_TA[t * (p.num_heads + p.num_kv_heads) + first_column / D + head] =
              inverse_rms;
        }
      };
      rotate(0, p.num_heads, p.q_norm_D, p.queries_TND);
      rotate(p.num_heads * D, p.num_kv_heads, p.k_norm_D, p.keys_TKD);
    }
  });
}

void RotateFusedHeadsBackward(const FusedRotationBackward& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  const int64_t D = p.head_size, num_rotated = p.num_heads + p.num_kv_heads;
  const int64_t row_size = (num_rotated + p.num_kv_heads) * D;
  const int64_t num_partials = NumPartials(p.num_rows);
  const int64_t grain = std::max<int64_t>(1, RowsPerTask(row_size) / kRowsPerPartial);
  parallel_for(num_partials, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(D));
    for (int64_t partial = begin; partial < end; ++partial) {
      float* const sums = p.partials_P2D + partial * 2 * D;
      std::fill_n(sums, 2 * D, 0.0f);
      const int64_t last = std::min(p.num_rows, (partial + 1) * kRowsPerPartial);
      for (int64_t t = partial * kRowsPerPartial; t < last; ++t) {
        const Row cos = At(p.cos_TD, t, D, p.dtype), sin = At(p.sin_TD, t, D, p.dtype);
        for (int64_t head = 0; head < num_rotated; ++head) {
          const bool is_query = head < p.num_heads;
          const void* const norm = is_query ? p.q_norm_D : p.k_norm_D;
          const int64_t column = t * row_size + head * D;
          loops.rotate_backward(
              At(p.qkv_TC, column, 1, p.dtype), norm,
              norm != nullptr ? p.inverse_rms_TA[t * num_rotated + head] : 1.0f, cos, sin,
              is_query ? At(p.d_queries_TND, t * p.num_heads + head, D, p.dtype)
                       : At(p.d_keys_TKD, t * p.num_kv_heads + head - p.num_heads, D, p.dtype),
              D, At(p.d_qkv_TC, column, 1, p.dtype), scratch.data(), sums + (is_query ? 0 : D));
        }
      }
    }
  });
  if (p.d_norms_2D == nullptr) return;
  std::fill_n(p.d_norms_2D, 2 * D, 0.0f);
  for (int64_t partial = 0; partial < num_partials; ++partial) {
    for (int64_t i = 0; i < 2 * D; ++i) p.d_norms_2D[i] += p.partials_P2D[partial * 2 * D + i];
  }
}

void ComputeFusedSwiGlu(const FusedSwiGlu& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  const int64_t I = p.size;
  parallel_for(p.num_rows, RowsPerTask(3 * I), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      loops.swiglu(At(p.gate_up_T2I, 2 * t, I, p.dtype), At(p.gate_up_T2I, 2 * t + 1, I, p.dtype),
                   I, At(p.y_TI, t, I, p.dtype));
    }
  });
}

void ComputeFusedSwiGluBackward(const FusedSwiGluBackward& p, const ParallelFor& parallel_for) {
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
