#include "kernels/torch/gemm/packed_product.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/torch/gemm/buffers.h"
#include "kernels/torch/parallel_loop.h"
#include "taopd/base/round_up.h"

namespace taopd {
namespace {

// A panel is multiplied by at most this many rows at a time, so that their sums stay in a cache
// until they are rounded.
constexpr int64_t kMaxRowBlock = 384;
// The smallest number of multiplications and additions that a thread is given.
constexpr int64_t kMinProductsPerThread = 1 << 17;
// The smallest number of elements that a thread packs.
constexpr int64_t kMinCopiedPerThread = 1 << 15;
// Packed weights of at most this many bytes stay in a core's cache, so the threads may share the
// rows. Then no thread has to wait because the last panel is narrower than the others.
constexpr int64_t kSmallWeightBytes = 256 << 10;
// With more units per thread than this, the load is even without sorting.
constexpr int64_t kEvenUnits = 16;

// Distributes units with these costs over as many threads as there is work for, and calls run(unit)
// for each. The most expensive units are assigned first, each to the thread with the least work so
// far; many units are divided in their order instead. A thread always runs its units in order.
template <typename F>
void RunByCost(const std::vector<int64_t>& costs, int64_t min_cost_per_thread, const F& run) {
  const auto num_units = static_cast<int64_t>(costs.size());
  const int64_t total = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  const int64_t num_shares =
      std::min<int64_t>(NumAvailableThreads(),
                        std::max<int64_t>(1, total / std::max<int64_t>(min_cost_per_thread, 1)));
  std::vector<std::vector<int64_t>> shares(static_cast<size_t>(num_shares));
  if (num_units > kEvenUnits * num_shares) {
    for (int64_t i = 0; i < num_units; ++i) {
      shares[static_cast<size_t>(i * num_shares / num_units)].push_back(i);
    }
  } else {
    std::vector<int64_t> order(costs.size()), loads(shares.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t left, int64_t right) {
      return costs[static_cast<size_t>(left)] > costs[static_cast<size_t>(right)];
    });
    for (const int64_t i : order) {
      const auto least = std::min_element(loads.begin(), loads.end()) - loads.begin();
      loads[static_cast<size_t>(least)] += costs[static_cast<size_t>(i)];
      shares[static_cast<size_t>(least)].push_back(i);
    }
    for (std::vector<int64_t>& share : shares) std::sort(share.begin(), share.end());
  }
  ParallelLoop(num_shares, 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      for (const int64_t i : shares[static_cast<size_t>(share)]) run(i);
    }
  });
}

// Returns x as the products read it: rows of adjacent columns, bfloat16 or float32.
at::Tensor RowsOf(const at::Tensor& x_MK, bool widen) {
  const at::Tensor rows = x_MK.stride(1) == 1 || x_MK.size(1) == 1 ? x_MK : x_MK.contiguous();
  if (!widen || rows.scalar_type() == at::kFloat) return rows;
  return rows.to(at::kFloat, /*non_blocking=*/false, /*copy=*/false, at::MemoryFormat::Contiguous);
}

// Many rows at distances of a power of two share few of a cache's sets: returns a copy of such rows
// at other distances, if they are multiplied in large tiles.
at::Tensor AvoidCacheConflicts(const at::Tensor& rows_MK, const cpu::PackedGemm& gemm) {
  constexpr int64_t kLine = 64, kSharedSets = 1024, kManyRows = 64;
  const int64_t M = rows_MK.size(0), K = rows_MK.size(1);
  const auto element_bytes = static_cast<int64_t>(rows_MK.element_size());
  const int64_t distance_bytes = rows_MK.stride(0) * element_bytes;
  if (!IsPairs(rows_MK.scalar_type()) || gemm.row_tile < kLine / element_bytes || M < kManyRows ||
      distance_bytes % kSharedSets != 0 || K * element_bytes < kSharedSets) {
    return rows_MK;
  }
  const int64_t distance = K + kLine / element_bytes;
  const at::Tensor buffer = Buffer(M * distance, rows_MK.scalar_type());
  auto* const to = static_cast<char*>(buffer.mutable_data_ptr());
  const auto* const from = static_cast<const char*>(rows_MK.const_data_ptr());
  ParallelLoop(M, std::max<int64_t>(1, kMinCopiedPerThread / K), [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      std::memcpy(to + m * distance * element_bytes, from + m * distance_bytes,
                  static_cast<size_t>(K * element_bytes));
    }
  });
  return buffer.view({M, distance}).narrow(1, 0, K);
}

// The products of a block of rows and one panel.
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
      gemm.multiply_floats(float_x, x_stride, weights, num_rows, columns, num_inputs, c, c_stride,
                           /*accumulate=*/false);
    } else if (gemm.multiply_pairs != nullptr) {
      gemm.multiply_pairs(static_cast<const cpu::Bfloat16Bits*>(x) + at_x, x_stride,
                          PairsFrom(panel), num_rows, columns, num_inputs, c, c_stride,
                          /*accumulate=*/false);
    } else {
      gemm.multiply_widened_pairs(float_x, x_stride, PairsFrom(panel), num_rows, columns,
                                  num_inputs, c, c_stride, /*accumulate=*/false);
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

// The units of a product: each is a panel with a block of rows. A panel's units follow each other,
// so one or two threads read it from memory, once and in order. If all panels stay in the cache,
// the units of a block of rows follow each other instead.
struct ProductUnits {
  ProductUnits(int64_t num_rows, int64_t num_inputs, int64_t num_outputs,
               const cpu::PackedGemm& gemm)
      : num_panels(cpu::NumPackedPanels(num_outputs)) {
    const int64_t num_threads = NumAvailableThreads();
    const int64_t bytes = num_panels * cpu::FloatPanelElements(num_inputs) * int64_t{sizeof(float)};
    by_rows = num_rows >= gemm.row_tile * num_threads && bytes <= kSmallWeightBytes;
    row_block = gemm.row_block;
    if (by_rows) {
      const int64_t rows_per_thread = CeilDiv(num_rows, num_threads);
      row_block = std::min(row_block, RoundUp(rows_per_thread, gemm.row_tile));
    }
    num_blocks = CeilDiv(num_rows, row_block);
  }
  int64_t Panel(int64_t unit) const { return by_rows ? unit % num_panels : unit / num_blocks; }
  int64_t FirstRow(int64_t unit) const {
    return (by_rows ? unit / num_panels : unit % num_blocks) * row_block;
  }

  int64_t num_panels, num_blocks, row_block;
  bool by_rows;  // whether the panels of a block of rows follow one another
};

// Appends pointers to the rows of a matrix with adjacent columns. The rows of several matrices may
// follow each other.
template <typename Element>
void AppendRows(const at::Tensor& matrix, std::vector<const Element*>* rows) {
  const auto* data = static_cast<const Element*>(matrix.const_data_ptr());
  for (int64_t i = 0; i < matrix.size(0); ++i) rows->push_back(data + i * matrix.stride(0));
}

// The panels of columns [first, first + num) of some matrices, whose rows follow each other. They
// are packed by Pack...Rows, in their type, or as the first factors of add_transposed_pairs.
struct PanelsOfColumns {
  std::vector<at::Tensor> matrices;
  int64_t first, num;
  at::Tensor panels;
  const cpu::PackedGemm* first_factor_of = nullptr;  // null: Pack...Rows
};

class PanelPacker {
 public:
  explicit PanelPacker(const PanelsOfColumns& job) : job_(job) {
    const bool from_pairs = IsPairs(job.matrices[0].scalar_type());
    for (const at::Tensor& matrix : job.matrices) {
      from_pairs ? AppendRows(matrix, &narrow_) : AppendRows(matrix, &wide_);
    }
    num_rows_ = static_cast<int64_t>(std::max(narrow_.size(), wide_.size()));
    elements_ = job.first_factor_of != nullptr
                    ? job.first_factor_of->first_factor_elements(num_rows_)
                    : PanelElements(num_rows_, job.panels.scalar_type());
    data_ = job.panels.mutable_data_ptr();
  }

  int64_t num_panels() const { return cpu::NumPackedPanels(job_.num); }
  int64_t num_elements(int64_t panel) const { return num_rows_ * ColumnsOf(panel, job_.num); }

  void Pack(int64_t panel) const {
    const int64_t column = job_.first + panel * cpu::kPanelOutputs;
    const int64_t columns = ColumnsOf(panel, job_.num);
    if (IsPairs(job_.panels.scalar_type())) {
      const auto pack = job_.first_factor_of != nullptr ? job_.first_factor_of->pack_first_factor
                                                        : cpu::PackPairRows;
      pack(narrow_.data(), column, num_rows_, columns,
           static_cast<cpu::Bfloat16Bits*>(data_) + panel * elements_);
    } else {
      cpu::PackFloatRows(wide_.data(), column, num_rows_, columns,
                         static_cast<float*>(data_) + panel * elements_);
    }
  }

 private:
  const PanelsOfColumns job_;
  std::vector<const cpu::Bfloat16Bits*> narrow_;
  std::vector<const float*> wide_;
  int64_t num_rows_, elements_;
  void* data_;
};

void PackColumnPanels(const std::vector<PanelsOfColumns>& jobs) {
  std::vector<PanelPacker> packers;
  std::vector<std::pair<size_t, int64_t>> units;  // packer, panel
  std::vector<int64_t> costs;
  for (const PanelsOfColumns& job : jobs) {
    const PanelPacker& packer = packers.emplace_back(job);
    for (int64_t panel = 0; panel < packer.num_panels(); ++panel) {
      units.emplace_back(packers.size() - 1, panel);
      costs.push_back(packer.num_elements(panel));
    }
  }
  RunByCost(costs, kMinCopiedPerThread, [&](int64_t i) {
    const auto& [packer, panel] = units[static_cast<size_t>(i)];
    packers[packer].Pack(panel);
  });
}

at::Tensor PanelBuffer(int64_t num_columns, int64_t num_rows, at::ScalarType dtype) {
  return Buffer(cpu::NumPackedPanels(num_columns) * PanelElements(num_rows, dtype), dtype);
}

// One block of a weight's gradient, at most kPanelOutputs by kPanelOutputs.
struct GradientBlock {
  int64_t first_output;  // among dy's columns
  int64_t first_input;
  int64_t rows, columns;
  float* to;
};

// Adds the blocks with products of bfloat16 pairs. Packs panels of all columns that `blocks` name.
void AddPairBlocks(const at::Tensor& dy_MN, const at::Tensor& x_MK,
                   const std::vector<WeightGradient>& gradients,
                   const std::vector<GradientBlock>& blocks, const std::vector<int64_t>& costs,
                   const cpu::PackedGemm& gemm) {
  const int64_t M = x_MK.size(0), K = x_MK.size(1), elements = PanelElements(M, at::kBFloat16);
  const int64_t dy_elements = gemm.first_factor_elements(M);
  std::vector<PanelsOfColumns> jobs = {{{x_MK}, 0, K, PanelBuffer(K, M, at::kBFloat16)}};
  std::map<int64_t, const at::BFloat16*> dy_panels;  // keyed by the first of their columns
  for (const WeightGradient& gradient : gradients) {
    if (gradient.target.numel() == 0) continue;
    const int64_t N = gradient.target.size(0);
    const at::Tensor panels = Buffer(cpu::NumPackedPanels(N) * dy_elements, at::kBFloat16);
    jobs.push_back({{dy_MN}, gradient.first_output, N, panels, &gemm});
    for (int64_t n = 0; n < cpu::NumPackedPanels(N); ++n) {
      dy_panels[gradient.first_output + n * cpu::kPanelOutputs] =
          panels.const_data_ptr<at::BFloat16>() + n * dy_elements;
    }
  }
  PackColumnPanels(jobs);
  const auto* const x_panels = jobs[0].panels.const_data_ptr<at::BFloat16>();
  RunByCost(costs, kMinProductsPerThread, [&](int64_t i) {
    const GradientBlock& block = blocks[static_cast<size_t>(i)];
    gemm.add_transposed_pairs(Bits(dy_panels.at(block.first_output)),
                              Bits(x_panels + block.first_input / cpu::kPanelOutputs * elements), M,
                              block.rows, block.columns, block.to, K);
  });
}

}  // namespace

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

int64_t PanelElements(int64_t num_inputs, at::ScalarType dtype) {
  return IsPairs(dtype) ? cpu::PairPanelElements(num_inputs) : cpu::FloatPanelElements(num_inputs);
}

void MultiplyPacked(const at::Tensor& x_MK, const PackedPanels& panels, int64_t num_outputs,
                    const float* bias, const at::Tensor& y_MN, const cpu::PackedGemm& gemm) {
  const int64_t num_rows = x_MK.size(0), num_inputs = x_MK.size(1);
  if (num_rows == 0) return;
  TORCH_CHECK(gemm.row_block <= kMaxRowBlock);
  const bool widen = !panels.pairs || gemm.multiply_pairs == nullptr;
  const at::Tensor rows_MK = AvoidCacheConflicts(RowsOf(x_MK, widen), gemm);
  const Product product(gemm, rows_MK, panels);
  const at::ScalarType out = y_MN.scalar_type();
  const ProductUnits units(num_rows, num_inputs, num_outputs, gemm);
  const int64_t unit_products =
      std::min(num_rows, units.row_block) * cpu::kPanelOutputs * num_inputs;
  auto* const y = static_cast<char*>(y_MN.mutable_data_ptr());
  const auto out_size = static_cast<int64_t>(y_MN.element_size());
  const int64_t y_stride = y_MN.stride(0);
  const int64_t grain =
      std::max<int64_t>(1, kMinProductsPerThread / std::max<int64_t>(unit_products, 1));
  ParallelLoop(units.num_panels * units.num_blocks, grain, [&](int64_t begin, int64_t end) {
    alignas(64) float sums[kMaxRowBlock * cpu::kPanelOutputs];
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t panel = units.Panel(unit), first_row = units.FirstRow(unit);
      const int64_t rows = std::min(units.row_block, num_rows - first_row);
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
  PackColumnPanels({{parts, 0, num_inputs, panels}});
  MultiplyPacked(dy_MN, PackedPanels(panels), num_inputs, /*bias=*/nullptr, dx_MK, gemm);
  return dx_MK;
}

void AddWeightGradients(const at::Tensor& dy_MN, const at::Tensor& x_MK,
                        const std::vector<WeightGradient>& gradients, const cpu::PackedGemm& gemm) {
  const int64_t M = x_MK.size(0), K = x_MK.size(1);
  if (M == 0) return;
  // Successive blocks share their columns of dy, which stay in the cache.
  std::vector<GradientBlock> blocks;
  std::vector<int64_t> costs;
  for (const WeightGradient& gradient : gradients) {
    if (gradient.target.numel() == 0) continue;
    const int64_t N = gradient.target.size(0);
    float* const target = gradient.target.mutable_data_ptr<float>();
    for (int64_t n = 0; n < N; n += cpu::kPanelOutputs) {
      for (int64_t k = 0; k < K; k += cpu::kPanelOutputs) {
        blocks.push_back({gradient.first_output + n, k, std::min(cpu::kPanelOutputs, N - n),
                          std::min(cpu::kPanelOutputs, K - k), target + n * K + k});
        costs.push_back(M * blocks.back().rows * blocks.back().columns);
      }
    }
  }
  if (IsPairs(x_MK.scalar_type()) && gemm.add_transposed_pairs != nullptr) {
    AddPairBlocks(RowsOf(dy_MN, /*widen=*/false), RowsOf(x_MK, /*widen=*/false), gradients, blocks,
                  costs, gemm);
    return;
  }
  const at::Tensor dy = RowsOf(dy_MN, /*widen=*/true), x = RowsOf(x_MK, /*widen=*/true);
  const float* const dy_data = dy.const_data_ptr<float>();
  const float* const x_data = x.const_data_ptr<float>();
  RunByCost(costs, kMinProductsPerThread, [&](int64_t i) {
    const GradientBlock& block = blocks[static_cast<size_t>(i)];
    gemm.add_transposed_floats(dy_data + block.first_output, dy.stride(0),
                               x_data + block.first_input, x.stride(0), M, block.rows,
                               block.columns, block.to, K);
  });
}

}  // namespace taopd
