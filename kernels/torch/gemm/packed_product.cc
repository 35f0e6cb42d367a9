#include "kernels/torch/gemm/packed_product.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/torch/gemm/head_blocks.h"

namespace taopd {
namespace {

// Rows that are multiplied with a panel at a time: their sums stay in the first-level cache until
// they are rounded. A multiple of every tile's rows.
constexpr int64_t kRowBlock = 96;
// A thread is given no less than this many multiplications and additions.
constexpr int64_t kMinProductsPerThread = 1 << 17;
// A thread packs no fewer numbers than this.
constexpr int64_t kMinCopiedPerThread = 1 << 15;

// Adds the bias, which may be null, to one row's sums, and rounds them to y's type.
void StoreRow(const cpu::PackedGemm& gemm, const float* sums, const float* bias, int64_t columns,
              at::ScalarType out, void* y) {
  if (out == at::kBFloat16) {
    gemm.add_and_round(sums, bias, columns, Bits(static_cast<at::BFloat16*>(y)));
  } else if (out == at::kHalf) {
    auto* to = static_cast<at::Half*>(y);
    for (int64_t j = 0; j < columns; ++j) {
      to[j] = static_cast<at::Half>(bias == nullptr ? sums[j] : sums[j] + bias[j]);
    }
  } else {
    auto* to = static_cast<float*>(y);
    for (int64_t j = 0; j < columns; ++j) to[j] = bias == nullptr ? sums[j] : sums[j] + bias[j];
  }
}

// x as the products read it: rows of adjacent columns, bfloat16 or float32.
at::Tensor RowsOf(const at::Tensor& x_MK, bool widen) {
  const at::Tensor rows = x_MK.stride(1) == 1 || x_MK.size(1) == 1 ? x_MK : x_MK.contiguous();
  if (!widen || rows.scalar_type() == at::kFloat) return rows;
  return rows.to(at::kFloat, /*non_blocking=*/false, /*copy=*/false, at::MemoryFormat::Contiguous);
}

// The products of a block of rows with one panel.
struct Product {
  Product(const cpu::PackedGemm& packed_gemm, const at::Tensor& rows_MK,
          const PackedPanels& packed_panels)
      : gemm(packed_gemm),
        panels(packed_panels),
        num_inputs(rows_MK.size(1)),
        x_stride(rows_MK.stride(0)),
        x(rows_MK.const_data_ptr()) {}

  void Compute(int64_t panel, int64_t first_row, int64_t num_rows, int64_t columns, float* c,
               int64_t c_stride) const {
    const int64_t at_x = first_row * x_stride;
    const float* const float_x = static_cast<const float*>(x) + at_x;
    if (!panels.pairs) {
      const float* const weights =
          static_cast<const float*>(panels.plain) + panel * cpu::FloatPanelElements(num_inputs);
      gemm.multiply_floats(float_x, x_stride, weights, num_rows, columns, num_inputs, c, c_stride);
    } else if (gemm.multiply_pairs != nullptr) {
      gemm.multiply_pairs(static_cast<const cpu::Bfloat16Bits*>(x) + at_x, x_stride,
                          PairsFrom(panel), num_rows, columns, num_inputs, c, c_stride);
    } else {
      gemm.multiply_widened_pairs(float_x, x_stride, PairsFrom(panel), num_rows, columns,
                                  num_inputs, c, c_stride);
    }
  }

  cpu::PairPanels PairsFrom(int64_t panel) const {
    if (panels.coded != nullptr) return panels.coded + panel;
    return static_cast<const cpu::Bfloat16Bits*>(panels.plain) +
           panel * cpu::PairPanelElements(num_inputs);
  }

  const cpu::PackedGemm& gemm;
  const PackedPanels panels;
  const int64_t num_inputs;
  const int64_t x_stride;
  const void* const x;
};

int64_t ColumnsOf(int64_t panel, int64_t num_columns) {
  return std::min(cpu::kPanelOutputs, num_columns - panel * cpu::kPanelOutputs);
}

// Pointers to the rows of a matrix with adjacent columns; the rows of several may follow each other.
template <typename Element>
void AppendRows(const at::Tensor& matrix, std::vector<const Element*>* rows) {
  const auto* data = static_cast<const Element*>(matrix.const_data_ptr());
  for (int64_t i = 0; i < matrix.size(0); ++i) rows->push_back(data + i * matrix.stride(0));
}

// The panels of columns [first, first + num) of each of some matrices, whose rows follow each other:
// packed by Pack...Rows, in the type of `panels`.
void PackColumnPanels(const std::vector<at::Tensor>& matrices, int64_t first, int64_t num,
                      const at::Tensor& panels) {
  std::vector<const cpu::Bfloat16Bits*> narrow;
  std::vector<const float*> wide;
  const bool from_pairs = IsPairs(matrices[0].scalar_type());
  for (const at::Tensor& matrix : matrices) {
    from_pairs ? AppendRows(matrix, &narrow) : AppendRows(matrix, &wide);
  }
  const auto num_rows = static_cast<int64_t>(std::max(narrow.size(), wide.size()));
  const int64_t elements = PanelElements(num_rows, panels.scalar_type());
  const int64_t grain = std::max<int64_t>(1, kMinCopiedPerThread / std::max<int64_t>(elements, 1));
  void* const data = panels.mutable_data_ptr();
  at::parallel_for(0, cpu::NumPackedPanels(num), grain, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t column = first + panel * cpu::kPanelOutputs, columns = ColumnsOf(panel, num);
      if (IsPairs(panels.scalar_type())) {
        cpu::PackPairRows(narrow.data(), column, num_rows, columns,
                          static_cast<cpu::Bfloat16Bits*>(data) + panel * elements);
      } else if (from_pairs) {
        cpu::PackWidenedRows(narrow.data(), column, num_rows, columns,
                             static_cast<float*>(data) + panel * elements);
      } else {
        cpu::PackFloatRows(wide.data(), column, num_rows, columns,
                           static_cast<float*>(data) + panel * elements);
      }
    }
  });
}

at::Tensor PanelBuffer(int64_t num_columns, int64_t num_rows, at::ScalarType dtype) {
  return Buffer(cpu::NumPackedPanels(num_columns) * PanelElements(num_rows, dtype), dtype);
}

// One 64 x 64 block of a weight's gradient.
struct GradientPanels {
  at::Tensor dy;  // panels of the weight's columns of dy
  at::Tensor target;
  int64_t first_unit;
};

}  // namespace

int64_t PanelElements(int64_t num_inputs, at::ScalarType dtype) {
  return IsPairs(dtype) ? cpu::PairPanelElements(num_inputs) : cpu::FloatPanelElements(num_inputs);
}

void MultiplyPacked(const at::Tensor& x_MK, const PackedPanels& panels, int64_t num_outputs,
                    const float* bias, const at::Tensor& y_MN, const cpu::PackedGemm& gemm) {
  const int64_t num_rows = x_MK.size(0), num_inputs = x_MK.size(1);
  if (num_rows == 0) return;
  const bool widen = !panels.pairs || gemm.multiply_pairs == nullptr;
  const at::Tensor rows_MK = RowsOf(x_MK, widen);
  const Product product(gemm, rows_MK, panels);
  const at::ScalarType out = y_MN.scalar_type();
  const int64_t num_blocks = (num_rows + kRowBlock - 1) / kRowBlock;
  const int64_t num_units = cpu::NumPackedPanels(num_outputs) * num_blocks;
  const int64_t unit_products = std::min(num_rows, kRowBlock) * cpu::kPanelOutputs * num_inputs;
  auto* const y = static_cast<char*>(y_MN.mutable_data_ptr());
  const auto out_size = static_cast<int64_t>(y_MN.element_size());
  const int64_t y_stride = y_MN.stride(0);
  // A unit is a panel with a block of rows. A thread's units follow one another in memory: each
  // panel is read from memory once, in order, by the one or two threads that need it.
  const int64_t grain =
      std::max<int64_t>(1, kMinProductsPerThread / std::max<int64_t>(unit_products, 1));
  at::parallel_for(0, num_units, grain, [&](int64_t begin, int64_t end) {
    alignas(64) float sums[kRowBlock * cpu::kPanelOutputs];
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t panel = unit / num_blocks;
      const int64_t first_row = unit % num_blocks * kRowBlock;
      const int64_t rows = std::min(kRowBlock, num_rows - first_row);
      const int64_t n = panel * cpu::kPanelOutputs;
      const int64_t columns = ColumnsOf(panel, num_outputs);
      char* to = y + (first_row * y_stride + n) * out_size;
      if (out == at::kFloat && bias == nullptr) {
        product.Compute(panel, first_row, rows, columns, reinterpret_cast<float*>(to), y_stride);
        continue;
      }
      product.Compute(panel, first_row, rows, columns, sums, cpu::kPanelOutputs);
      for (int64_t m = 0; m < rows; ++m) {
        StoreRow(gemm, sums + m * cpu::kPanelOutputs, bias == nullptr ? nullptr : bias + n, columns,
                 out, to + m * y_stride * out_size);
      }
    }
  });
}

at::Tensor InputGradient(const at::Tensor& dy_MN, const std::vector<at::Tensor>& parts,
                         const cpu::PackedGemm& gemm) {
  const int64_t num_inputs = parts[0].size(1);
  const at::Tensor panels = PanelBuffer(num_inputs, dy_MN.size(1), dy_MN.scalar_type());
  const at::Tensor dx_MK = at::empty({dy_MN.size(0), num_inputs}, dy_MN.options());
  if (dy_MN.size(0) == 0) return dx_MK;
  PackColumnPanels(parts, 0, num_inputs, panels);
  MultiplyPacked(dy_MN, PackedPanels(panels), num_inputs, /*bias=*/nullptr, dx_MK, gemm);
  return dx_MK;
}

void AddWeightGradients(const at::Tensor& dy_MN, const at::Tensor& x_MK,
                        const std::vector<WeightGradient>& gradients, const cpu::PackedGemm& gemm) {
  const int64_t M = x_MK.size(0), K = x_MK.size(1);
  if (M == 0) return;
  const bool pairs = IsPairs(x_MK.scalar_type()) && gemm.add_transposed_pairs != nullptr;
  const at::ScalarType packed_type = pairs ? at::kBFloat16 : at::kFloat;
  const at::Tensor x_rows = RowsOf(x_MK, /*widen=*/false);
  const at::Tensor dy_rows = RowsOf(dy_MN, /*widen=*/false);
  const at::Tensor x_panels = PanelBuffer(K, M, packed_type);
  PackColumnPanels({x_rows}, 0, K, x_panels);
  const int64_t num_k_panels = cpu::NumPackedPanels(K), elements = PanelElements(M, packed_type);
  std::vector<GradientPanels> parts;
  int64_t num_units = 0;
  for (const WeightGradient& gradient : gradients) {
    if (!gradient.target.defined() || gradient.target.numel() == 0) continue;
    const int64_t N = gradient.target.size(0);
    parts.push_back({PanelBuffer(N, M, packed_type), gradient.target, num_units});
    PackColumnPanels({dy_rows}, gradient.first_output, N, parts.back().dy);
    num_units += cpu::NumPackedPanels(N) * num_k_panels;
  }
  const int64_t grain =
      std::max<int64_t>(1, kMinProductsPerThread / (M * cpu::kPanelOutputs * cpu::kPanelOutputs));
  const void* const x_data = x_panels.const_data_ptr();
  // A unit is a block of a gradient, 64 outputs by 64 inputs. Units that follow one another share
  // their panel of dy, which stays in the cache.
  at::parallel_for(0, num_units, grain, [&](int64_t begin, int64_t end) {
    auto part = parts.begin();
    for (int64_t unit = begin; unit < end; ++unit) {
      while (part + 1 != parts.end() && (part + 1)->first_unit <= unit) ++part;
      const int64_t n_panel = (unit - part->first_unit) / num_k_panels,
                    k_panel = (unit - part->first_unit) % num_k_panels;
      const int64_t rows = ColumnsOf(n_panel, part->target.size(0)),
                    columns = ColumnsOf(k_panel, K);
      float* const to = part->target.mutable_data_ptr<float>() + n_panel * cpu::kPanelOutputs * K +
                        k_panel * cpu::kPanelOutputs;
      const void* const dy_data = part->dy.const_data_ptr();
      if (pairs) {
        gemm.add_transposed_pairs(
            static_cast<const cpu::Bfloat16Bits*>(dy_data) + n_panel * elements,
            static_cast<const cpu::Bfloat16Bits*>(x_data) + k_panel * elements, M, rows, columns,
            to, K);
      } else {
        gemm.add_transposed_floats(static_cast<const float*>(dy_data) + n_panel * elements,
                                   static_cast<const float*>(x_data) + k_panel * elements, M, rows,
                                   columns, to, K);
      }
    }
  });
}

}  // namespace taopd
