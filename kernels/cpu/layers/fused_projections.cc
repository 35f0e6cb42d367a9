#include "kernels/cpu/layers/fused_projections.h"

#include <algorithm>

#include "kernels/cpu/layers/layer_loops.h"

namespace taopd::cpu {
namespace {

constexpr int64_t kElementsOfTask = 1 << 14;  // less is not worth waking a thread

int64_t RowsOfTask(int64_t row_size) {
  return std::max<int64_t>(1, kElementsOfTask / std::max<int64_t>(row_size, 1));
}

// Element `index` of an array of this type; null stays null.
const void* Element(const void* array, int64_t index, DataType type) {
  return array == nullptr ? nullptr : static_cast<const char*>(array) + index * SizeOf(type);
}
void* Element(void* array, int64_t index, DataType type) {
  return static_cast<char*>(array) + index * SizeOf(type);
}

}  // namespace

void Run(const RotateFusedHeads& p, const ParallelFor& parallel_for) {
  const LayerLoops& loops = BestLayerLoops(p.dtype);
  const int64_t D = p.head_size;
  const int64_t row_size = (p.num_heads + 2 * p.num_kv_heads) * D;
  parallel_for(p.num_rows, RowsOfTask(row_size), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Row cos = Element(p.cos_TD, t * D, p.dtype), sin = Element(p.sin_TD, t * D, p.dtype);
      const auto rotate = [&](int64_t first_column, int64_t num_heads, const void* norm,
                              void* out) {
        for (int64_t head = 0; head < num_heads; ++head) {
          loops.rotate(Element(p.qkv_TC, t * row_size + first_column + head * D, p.dtype), norm,
                       cos, sin, D, p.eps, Element(out, (t * num_heads + head) * D, p.dtype));
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
  parallel_for(p.num_rows, RowsOfTask(3 * I), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      loops.swiglu(Element(p.gate_up_T2I, 2 * t * I, p.dtype),
                   Element(p.gate_up_T2I, (2 * t + 1) * I, p.dtype), I,
                   Element(p.y_TI, t * I, p.dtype));
    }
  });
}

}  // namespace taopd::cpu
