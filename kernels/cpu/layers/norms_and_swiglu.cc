#include "taopd/layers/norms_and_swiglu.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/layers/layer_loops.h"
#include "kernels/cpu/layers/rows.h"

namespace taopd::cpu {
namespace {

// d_weight = the sum of the partials, in order.
void SumPartials(const float* partials, int64_t num_partials, int64_t size, DataType type,
                 void* d_weight) {
  std::vector<float> total(size);
  for (int64_t p = 0; p < num_partials; ++p) {
    for (int64_t i = 0; i < size; ++i) total[i] += partials[p * size + i];
  }
  BestLayerLoops(type).narrow(total.data(), size, d_weight);
}

}  // namespace

void NormalizeRows(const RmsNormForward& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  parallel_for(p.num_rows, RowsPerTask(p.size), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float inverse_rms = loops.rms_norm(
          At(p.x_NH, n, p.size, p.dtype), At(p.added_NH, n, p.size, p.dtype), p.weight_H, p.size,
          p.eps, At(p.sum_NH, n, p.size, p.dtype), At(p.normed_NH, n, p.size, p.dtype));
      if (p.inverse_rms_N != nullptr) p.inverse_rms_N[n] = inverse_rms;
    }
  });
}

void NormalizeRowsBackward(const RmsNormBackward& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  const int64_t num_partials = NumPartials(p.num_rows);
  const int64_t grain = std::max<int64_t>(1, RowsPerTask(p.size) / kRowsPerPartial);
  parallel_for(num_partials, grain, [&](int64_t begin, int64_t end) {
    for (int64_t partial = begin; partial < end; ++partial) {
      float* const sums = p.partials_PH + partial * p.size;
      std::fill_n(sums, p.size, 0.0f);
      const int64_t last = std::min(p.num_rows, (partial + 1) * kRowsPerPartial);
      for (int64_t n = partial * kRowsPerPartial; n < last; ++n) {
        loops.rms_norm_backward(At(p.x_NH, n, p.size, p.dtype), p.weight_H, p.inverse_rms_N[n],
                                At(p.d_normed_NH, n, p.size, p.dtype),
                                At(p.d_sum_NH, n, p.size, p.dtype), p.size,
                                At(p.d_x_NH, n, p.size, p.dtype), sums);
      }
    }
  });
  SumPartials(p.partials_PH, num_partials, p.size, p.dtype, p.d_weight_H);
}

void RotateHeads(const HeadsForward& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  const int64_t D = p.head_size;
  parallel_for(p.num_tokens, RowsPerTask(p.num_heads * D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Row cos = At(p.cos_TD, t, D, p.dtype), sin = At(p.sin_TD, t, D, p.dtype);
      for (int64_t row = t * p.num_heads; row < (t + 1) * p.num_heads; ++row) {
        const float inverse_rms = loops.rotate(At(p.x_TAD, row, D, p.dtype), p.weight_D, cos, sin,
                                               D, p.eps, At(p.out_TAD, row, D, p.dtype));
        if (p.inverse_rms_TA != nullptr) p.inverse_rms_TA[row] = inverse_rms;
      }
    }
  });
}

void RotateHeadsBackward(const HeadsBackward& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  const int64_t D = p.head_size, num_partials = NumPartials(p.num_tokens);
  const int64_t grain = std::max<int64_t>(1, RowsPerTask(p.num_heads * D) / kRowsPerPartial);
  parallel_for(num_partials, grain, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(D);
    for (int64_t partial = begin; partial < end; ++partial) {
      float* const sums = p.weight_D != nullptr ? p.partials_PD + partial * D : nullptr;
      if (sums != nullptr) std::fill_n(sums, D, 0.0f);
      const int64_t last = std::min(p.num_tokens, (partial + 1) * kRowsPerPartial);
      for (int64_t t = partial * kRowsPerPartial; t < last; ++t) {
        const Row cos = At(p.cos_TD, t, D, p.dtype), sin = At(p.sin_TD, t, D, p.dtype);
        for (int64_t head = 0; head < p.num_heads; ++head) {
          const int64_t row = t * p.num_heads + head;
          const int64_t place = t * p.d_out_token_stride + head * p.d_out_head_stride;
          loops.rotate_backward(At(p.x_TAD, row, D, p.dtype), p.weight_D,
                                p.weight_D != nullptr ? p.inverse_rms_TA[row] : 1.0f, cos, sin,
                                At(p.d_out_TAD, place, 1, p.dtype), D,
                                At(p.d_x_TAD, row, D, p.dtype), scratch.data(), sums);
        }
      }
    }
  });
  if (p.weight_D != nullptr) SumPartials(p.partials_PD, num_partials, D, p.dtype, p.d_weight_D);
}

void ComputeSwiGlu(const SwiGluForward& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  parallel_for(p.size, kElementsPerTask, [&](int64_t begin, int64_t end) {
    loops.swiglu(At(p.gate, begin, 1, p.dtype), At(p.up, begin, 1, p.dtype), end - begin,
                 At(p.y, begin, 1, p.dtype));
  });
}

void ComputeSwiGluBackward(const SwiGluBackward& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  parallel_for(p.size, kElementsPerTask, [&](int64_t begin, int64_t end) {
    loops.swiglu_backward(At(p.gate, begin, 1, p.dtype), At(p.up, begin, 1, p.dtype),
                          At(p.d_y, begin, 1, p.dtype), end - begin,
                          At(p.d_gate, begin, 1, p.dtype), At(p.d_up, begin, 1, p.dtype));
  });
}

}  // namespace taopd::cpu
