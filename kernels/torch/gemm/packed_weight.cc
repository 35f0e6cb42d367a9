#include "kernels/torch/gemm/packed_weight.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include "kernels/torch/gemm/head_blocks.h"

namespace taopd {
namespace {

// Rows that are multiplied with a panel at a time: their sums stay in the first-level cache until
// they are rounded. A multiple of every tile's rows.
constexpr int64_t kRowBlock = 96;
// A thread is given no less than this many multiplications and additions.
constexpr int64_t kMinProductsPerThread = 1 << 17;

int64_t VersionOf(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

bool IsPairs(at::ScalarType dtype) { return dtype == at::kBFloat16; }

int64_t PanelElements(int64_t num_inputs, at::ScalarType dtype) {
  return IsPairs(dtype) ? cpu::PairPanelElements(num_inputs) : cpu::FloatPanelElements(num_inputs);
}

// Adds the bias, which may be null, to one row's sums, and rounds them to y's type.
void StoreRow(const float* sums, const float* bias, int64_t columns, at::ScalarType out, void* y) {
  if (out == at::kBFloat16) {
    cpu::BestPackedGemm().add_and_round(sums, bias, columns, Bits(static_cast<at::BFloat16*>(y)));
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
  Product(const cpu::PackedGemm& packed_gemm, const at::Tensor& rows_MK, const at::Tensor& packed)
      : gemm(packed_gemm),
        pairs(IsPairs(packed.scalar_type())),
        num_inputs(rows_MK.size(1)),
        x_stride(rows_MK.stride(0)),
        x(rows_MK.const_data_ptr()),
        panels(packed.const_data_ptr()) {}

  void Compute(int64_t panel, int64_t first_row, int64_t num_rows, int64_t columns, float* c,
               int64_t c_stride) const {
    const int64_t at_x = first_row * x_stride;
    const float* const float_x = static_cast<const float*>(x) + at_x;
    if (!pairs) {
      gemm.multiply_floats(
          float_x, x_stride,
          static_cast<const float*>(panels) + panel * cpu::FloatPanelElements(num_inputs), num_rows,
          columns, num_inputs, c, c_stride);
      return;
    }
    const cpu::Bfloat16Bits* weights =
        static_cast<const cpu::Bfloat16Bits*>(panels) + panel * cpu::PairPanelElements(num_inputs);
    if (gemm.multiply_pairs != nullptr) {
      gemm.multiply_pairs(static_cast<const cpu::Bfloat16Bits*>(x) + at_x, x_stride, weights,
                          num_rows, columns, num_inputs, c, c_stride);
    } else {
      gemm.multiply_widened_pairs(float_x, x_stride, weights, num_rows, columns, num_inputs, c,
                                  c_stride);
    }
  }

  const cpu::PackedGemm& gemm;
  const bool pairs;
  const int64_t num_inputs;
  const int64_t x_stride;
  const void* const x;
  const void* const panels;
};

void CheckParts(const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& biases) {
  TORCH_CHECK(!parts.empty(), "a packed weight needs at least one part");
  TORCH_CHECK(biases.empty() || biases.size() == parts.size(), "there are ", biases.size(),
              " biases of ", parts.size(), " parts");
  const at::ScalarType dtype = parts[0].scalar_type();
  TORCH_CHECK(dtype == at::kBFloat16 || dtype == at::kFloat || dtype == at::kHalf, "weight is ",
              dtype, ", must be bfloat16, float32 or float16");
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor& part = parts[i];
    TORCH_CHECK(part.dim() == 2 && part.size(0) > 0 && part.size(1) > 0, "part ", i, " has shape ",
                part.sizes(), ", must be [outputs, inputs]");
    TORCH_CHECK(part.is_cpu() && part.scalar_type() == dtype, "part ", i, " is ",
                part.scalar_type(), " on ", part.device(), ", must be ", dtype, " on the CPU");
    TORCH_CHECK(part.size(1) == parts[0].size(1), "part ", i, " has ", part.size(1),
                " inputs, part 0 has ", parts[0].size(1));
    TORCH_CHECK(part.is_contiguous(), "part ", i, " has strides ", part.strides(),
                ", must be contiguous");
    if (biases.empty() || !biases[i].defined()) continue;
    TORCH_CHECK(biases[i].is_cpu() && biases[i].is_floating_point() && biases[i].dim() == 1 &&
                    biases[i].size(0) == part.size(0),
                "bias ", i, " is ", biases[i].scalar_type(), " of shape ", biases[i].sizes(),
                " on ", biases[i].device(), ", but its part has ", part.size(0), " outputs");
  }
}

}  // namespace

PackedWeight::PackedWeight(std::vector<at::Tensor> parts, std::vector<at::Tensor> biases) {
  CheckParts(parts, biases);
  dtype_ = parts[0].scalar_type();
  num_inputs_ = parts[0].size(1);
  bool has_bias = false;
  for (at::Tensor& part : parts) {
    first_outputs_.push_back(num_outputs_);
    num_outputs_ += part.size(0);
    parts_.push_back({std::move(part), 0});
  }
  first_outputs_.push_back(num_outputs_);
  for (at::Tensor& bias : biases) {
    has_bias = has_bias || bias.defined();
    biases_.push_back({std::move(bias), 0});
  }
  packed_ = Buffer(cpu::NumPackedPanels(num_outputs_) * PanelElements(num_inputs_, dtype_),
                   IsPairs(dtype_) ? at::kBFloat16 : at::kFloat);
  if (has_bias) bias_N_ = Buffer(num_outputs_, at::kFloat);
  Pack();
}

int64_t PackedWeight::SizeBytes(int64_t num_outputs, int64_t num_inputs, at::ScalarType dtype) {
  return cpu::NumPackedPanels(num_outputs) * PanelElements(num_inputs, dtype) *
         static_cast<int64_t>(IsPairs(dtype) ? sizeof(at::BFloat16) : sizeof(float));
}

int64_t PackedWeight::size_bytes() const { return SizeBytes(num_outputs_, num_inputs_, dtype_); }

bool PackedWeight::Refresh() {
  const auto written = [](const Source& source) {
    return source.tensor.defined() && VersionOf(source.tensor) != source.version;
  };
  if (std::none_of(parts_.begin(), parts_.end(), written) &&
      std::none_of(biases_.begin(), biases_.end(), written)) {
    return false;
  }
  Pack();
  return true;
}

void PackedWeight::DropSources() {
  parts_.clear();
  biases_.clear();
}

void PackedWeight::Pack() {
  RECORD_USER_SCOPE("taopd::pack_weight");
  const int64_t num_panels = cpu::NumPackedPanels(num_outputs_);
  const int64_t grain =
      std::max<int64_t>(1, kMinProductsPerThread / PanelElements(num_inputs_, dtype_));
  at::parallel_for(0, num_panels, grain, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      IsPairs(dtype_) ? PackPairPanel(panel) : PackFloatPanel(panel);
    }
  });
  if (bias_N_.defined()) PackBias();
  for (Source& source : parts_) source.version = VersionOf(source.tensor);
  for (Source& source : biases_) {
    if (source.tensor.defined()) source.version = VersionOf(source.tensor);
  }
}

// Calls pack(part, row, num_rows, column) for the outputs of each part that lie in a panel.
template <typename PackColumns>
void PackedWeight::PackParts(int64_t panel, const PackColumns& pack) const {
  const int64_t begin = panel * cpu::kPanelOutputs;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int64_t first = std::max(begin, first_outputs_[i]);
    const int64_t last = std::min(begin + cpu::kPanelOutputs, first_outputs_[i + 1]);
    if (first < last)
      pack(parts_[i].tensor, first - first_outputs_[i], last - first, first - begin);
  }
}

void PackedWeight::PackPairPanel(int64_t panel) const {
  cpu::Bfloat16Bits* to =
      Bits(packed_.mutable_data_ptr<at::BFloat16>()) + panel * cpu::PairPanelElements(num_inputs_);
  PackParts(panel, [&](const at::Tensor& part, int64_t row, int64_t num_rows, int64_t column) {
    cpu::PackPairColumns(Bits(part.const_data_ptr<at::BFloat16>()) + row * num_inputs_, num_inputs_,
                         num_rows, num_inputs_, column, to);
  });
  cpu::ZeroPairColumns(num_inputs_, ColumnsOf(panel), to);
}

void PackedWeight::PackFloatPanel(int64_t panel) const {
  float* to = packed_.mutable_data_ptr<float>() + panel * cpu::FloatPanelElements(num_inputs_);
  std::vector<float> widened;
  PackParts(panel, [&](const at::Tensor& part, int64_t row, int64_t num_rows, int64_t column) {
    const float* from = nullptr;
    if (part.scalar_type() == at::kHalf) {
      const at::Half* halves = part.const_data_ptr<at::Half>() + row * num_inputs_;
      widened.assign(halves, halves + num_rows * num_inputs_);
      from = widened.data();
    } else {
      from = part.const_data_ptr<float>() + row * num_inputs_;
    }
    cpu::PackFloatColumns(from, num_inputs_, num_rows, num_inputs_, column, to);
  });
  cpu::ZeroFloatColumns(num_inputs_, ColumnsOf(panel), to);
}

int64_t PackedWeight::ColumnsOf(int64_t panel) const {
  return std::min(cpu::kPanelOutputs, num_outputs_ - panel * cpu::kPanelOutputs);
}

// Through pointers: an operation of ATen could not write into memory that was made in inference
// mode once that mode is left.
void PackedWeight::PackBias() const {
  float* to = bias_N_.mutable_data_ptr<float>();
  std::fill(to, to + num_outputs_, 0.0f);
  for (size_t i = 0; i < biases_.size(); ++i) {
    if (!biases_[i].tensor.defined()) continue;
    const at::Tensor bias = biases_[i].tensor.detach().to(at::kFloat).contiguous();
    const float* from = bias.const_data_ptr<float>();
    std::copy(from, from + bias.numel(), to + first_outputs_[i]);
  }
}

at::Tensor PackedWeight::Multiply(const at::Tensor& x_MK, at::ScalarType out) const {
  TORCH_CHECK(x_MK.dim() == 2, "x has shape ", x_MK.sizes(), ", must be [rows, inputs]");
  const at::Tensor y_MN = at::empty({x_MK.size(0), num_outputs_}, x_MK.options().dtype(out));
  MultiplyInto(x_MK, y_MN);
  return y_MN;
}

void PackedWeight::MultiplyInto(const at::Tensor& x_MK, const at::Tensor& y_MN,
                                const cpu::PackedGemm& gemm) const {
  RECORD_USER_SCOPE("taopd::packed_linear");
  TORCH_CHECK(defined(), "the packed weight is empty");
  TORCH_CHECK(x_MK.is_cpu() && x_MK.scalar_type() == dtype_, "x is ", x_MK.scalar_type(), " on ",
              x_MK.device(), ", the weight is ", dtype_, " on the CPU");
  TORCH_CHECK(x_MK.dim() == 2 && x_MK.size(1) == num_inputs_, "x has shape ", x_MK.sizes(),
              ", the weight has ", num_inputs_, " inputs");
  const at::ScalarType out = y_MN.scalar_type();
  TORCH_CHECK(y_MN.is_cpu() && (out == dtype_ || out == at::kFloat), "y is ", out, " on ",
              y_MN.device(), ", must be ", dtype_, " or float32 on the CPU");
  const int64_t num_rows = x_MK.size(0);
  TORCH_CHECK(y_MN.dim() == 2 && y_MN.size(0) == num_rows && y_MN.size(1) == num_outputs_ &&
                  (y_MN.stride(1) == 1 || num_outputs_ == 1),
              "y has shape ", y_MN.sizes(), " and strides ", y_MN.strides(), ", must be [",
              num_rows, ", ", num_outputs_, "] with adjacent columns");
  if (num_rows == 0) return;

  const at::Tensor rows_MK = RowsOf(x_MK, !IsPairs(dtype_) || gemm.multiply_pairs == nullptr);
  const Product product(gemm, rows_MK, packed_);
  const int64_t num_blocks = (num_rows + kRowBlock - 1) / kRowBlock;
  const int64_t num_units = cpu::NumPackedPanels(num_outputs_) * num_blocks;
  const int64_t unit_products = std::min(num_rows, kRowBlock) * cpu::kPanelOutputs * num_inputs_;
  auto* const y = static_cast<char*>(y_MN.mutable_data_ptr());
  const auto out_size = static_cast<int64_t>(y_MN.element_size());
  const int64_t y_stride = y_MN.stride(0);
  const float* bias = bias_N_.defined() ? bias_N_.const_data_ptr<float>() : nullptr;
  // A unit is a panel with a block of rows. A thread's units follow one another in memory: each
  // panel is read from memory once, in order, by the one or two threads that need it.
  const int64_t grain = std::max<int64_t>(1, kMinProductsPerThread / unit_products);
  at::parallel_for(0, num_units, grain, [&](int64_t begin, int64_t end) {
    alignas(64) float sums[kRowBlock * cpu::kPanelOutputs];
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t panel = unit / num_blocks;
      const int64_t first_row = unit % num_blocks * kRowBlock;
      const int64_t rows = std::min(kRowBlock, num_rows - first_row);
      const int64_t n = panel * cpu::kPanelOutputs;
      const int64_t columns = ColumnsOf(panel);
      char* to = y + (first_row * y_stride + n) * out_size;
      if (out == at::kFloat && bias == nullptr) {
        product.Compute(panel, first_row, rows, columns, reinterpret_cast<float*>(to), y_stride);
        continue;
      }
      product.Compute(panel, first_row, rows, columns, sums, cpu::kPanelOutputs);
      for (int64_t m = 0; m < rows; ++m) {
        StoreRow(sums + m * cpu::kPanelOutputs, bias == nullptr ? nullptr : bias + n, columns, out,
                 to + m * y_stride * out_size);
      }
    }
  });
}

}  // namespace taopd
