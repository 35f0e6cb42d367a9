#include "kernels/torch/gemm/packed_weight.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/torch/gemm/buffers.h"
#include "kernels/torch/parallel_loop.h"

namespace taopd {
namespace {

// The smallest number of elements that a thread packs.
constexpr int64_t kMinPackedPerThread = 1 << 17;

int64_t VersionOf(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

// Calls f(begin, end) for contiguous ranges of panels, on several threads.
template <typename F>
void ForPanelRanges(int64_t num_outputs, int64_t panel_elements, const F& f) {
  const int64_t grain = std::max<int64_t>(1, kMinPackedPerThread / panel_elements);
  ParallelLoop(cpu::NumPackedPanels(num_outputs), grain, f);
}

void CheckParts(const std::vector<at::Tensor>& parts, const std::vector<at::Tensor>& biases,
                const std::vector<LowRankAdapter>& adapters) {
  TORCH_CHECK(adapters.empty() || adapters.size() == parts.size(), "there are ", adapters.size(),
              " adapters of ", parts.size(), " parts");
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
    if (!adapters.empty() && adapters[i].defined()) {
      CheckAdapter(adapters[i], part);
      TORCH_CHECK(dtype != at::kHalf, "a float16 weight is not packed with an adapter");
    }
    if (biases.empty() || !biases[i].defined()) continue;
    TORCH_CHECK(biases[i].is_cpu() && biases[i].is_floating_point() && biases[i].dim() == 1 &&
                    biases[i].size(0) == part.size(0),
                "bias ", i, " is ", biases[i].scalar_type(), " of shape ", biases[i].sizes(),
                " on ", biases[i].device(), ", but its part has ", part.size(0), " outputs");
  }
}

}  // namespace

PackedWeight::PackedWeight(std::vector<at::Tensor> parts, std::vector<at::Tensor> biases,
                           std::vector<LowRankAdapter> adapters, Pairs pairs)
    : pairs_(pairs), adapters_(std::move(adapters)) {
  CheckParts(parts, biases, adapters_);
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
  for (const LowRankAdapter& adapter : adapters_) {
    if (!adapter.defined()) continue;
    adapter_factors_.push_back({adapter.a_RK, 0});
    adapter_factors_.push_back({adapter.b_NR, 0});
  }
  if (has_bias) bias_N_ = Buffer(num_outputs_, at::kFloat);
  Pack();
}

int64_t PackedWeight::size_bytes() const {
  auto bytes = static_cast<int64_t>(packed_.nbytes());
  for (const cpu::CodedPanelTables& tables : tables_) {
    bytes += static_cast<int64_t>(sizeof(tables) + sizeof(cpu::CodedPanel) +
                                  tables.exceptions.size() * sizeof(cpu::CodedException));
  }
  return bytes;
}

PackedPanels PackedWeight::panels() const {
  return is_coded() ? PackedPanels(coded_.data()) : PackedPanels(packed_);
}

bool PackedWeight::Refresh() {
  const auto written = [](const Source& source) {
    return source.tensor.defined() && VersionOf(source.tensor) != source.version;
  };
  if (std::none_of(parts_.begin(), parts_.end(), written) &&
      std::none_of(adapter_factors_.begin(), adapter_factors_.end(), written) &&
      std::none_of(biases_.begin(), biases_.end(), written)) {
    return false;
  }
  Pack();
  return true;
}

void PackedWeight::Replace(const std::map<const void*, at::Tensor>& newer) {
  bool is_replaced = false;
  for (std::vector<Source>* sources : {&parts_, &biases_}) {
    for (Source& source : *sources) {
      if (!source.tensor.defined()) continue;
      const auto found = newer.find(source.tensor.const_data_ptr());
      if (found == newer.end()) continue;
      TORCH_CHECK(found->second.is_contiguous() && found->second.sizes() == source.tensor.sizes() &&
                      found->second.scalar_type() == source.tensor.scalar_type(),
                  "a part of shape ", source.tensor.sizes(), " is replaced by ",
                  found->second.scalar_type(), " of shape ", found->second.sizes());
      source.tensor = found->second;
      is_replaced = true;
    }
  }
  if (is_replaced) Pack();
}

void PackedWeight::DropSources() {
  parts_.clear();
  biases_.clear();
  adapters_.clear();
  adapter_factors_.clear();
}

void PackedWeight::Reserve(int64_t num, at::ScalarType dtype) {
  if (packed_.defined() && packed_.numel() == num && packed_.scalar_type() == dtype) return;
  packed_ = at::Tensor();
  packed_ = Buffer(num, dtype);
}

// Returns false if the numbers of a panel are spread too widely.
bool PackedWeight::PackCoded() {
  const int64_t num_panels = cpu::NumPackedPanels(num_outputs_);
  const int64_t elements = PanelElements(num_inputs_, dtype_);
  const int64_t num_steps = elements / cpu::kStepNumbers;
  const int64_t panel_bytes = num_steps * cpu::kCodedStepBytes;
  Reserve(num_panels * panel_bytes, at::kByte);
  tables_.resize(static_cast<size_t>(num_panels));
  coded_.resize(static_cast<size_t>(num_panels));
  std::atomic<bool> fits{true};
  ForPanelRanges(num_outputs_, elements, [&](int64_t begin, int64_t end) {
    std::vector<cpu::Bfloat16Bits> plain(static_cast<size_t>(elements));
    for (int64_t panel = begin; panel < end && fits.load(std::memory_order_relaxed); ++panel) {
      PackPairPanel(panel, plain.data());
      uint8_t* const steps = packed_.mutable_data_ptr<uint8_t>() + panel * panel_bytes;
      cpu::CodedPanelTables& tables = tables_[static_cast<size_t>(panel)];
      if (!cpu::EncodePanel(plain.data(), num_steps, steps, &tables)) fits = false;
      coded_[static_cast<size_t>(panel)] = {steps, tables.high_bytes, tables.exceptions.data()};
    }
  });
  return fits;
}

void PackedWeight::Pack() {
  RECORD_USER_SCOPE("taopd::pack_weight");
  merged_.clear();  // left over if the last call ran out of memory
  for (size_t i = 0; i < adapters_.size(); ++i) {
    merged_.emplace_back();
    if (adapters_[i].defined()) merged_.back().emplace(parts_[i].tensor.detach(), adapters_[i]);
  }
  const int64_t elements = PanelElements(num_inputs_, dtype_);
  if (!IsPairs(dtype_) || pairs_ == Pairs::kPlain || !PackCoded()) {
    tables_.clear();
    coded_.clear();
    Reserve(cpu::NumPackedPanels(num_outputs_) * elements,
            IsPairs(dtype_) ? at::kBFloat16 : at::kFloat);
    ForPanelRanges(num_outputs_, elements, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel) {
        if (!IsPairs(dtype_)) {
          PackFloatPanel(panel);
        } else {
          PackPairPanel(panel, Bits(packed_.mutable_data_ptr<at::BFloat16>()) + panel * elements);
        }
      }
    });
  }
  merged_.clear();
  if (bias_N_.defined()) PackBias();
  SetVersions();
}

void PackedWeight::SetVersions() {
  for (std::vector<Source>* sources : {&parts_, &adapter_factors_, &biases_}) {
    for (Source& source : *sources) {
      if (source.tensor.defined()) source.version = VersionOf(source.tensor);
    }
  }
}

// Calls pack(part, row, num_rows, column) for the outputs of each part that are in a panel; `part`
// is an index.
template <typename PackColumns>
void PackedWeight::PackParts(int64_t panel, const PackColumns& pack) const {
  const int64_t begin = panel * cpu::kPanelOutputs;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int64_t first = std::max(begin, first_outputs_[i]);
    const int64_t last = std::min(begin + cpu::kPanelOutputs, first_outputs_[i + 1]);
    if (first < last) pack(i, first - first_outputs_[i], last - first, first - begin);
  }
}

void PackedWeight::PackPairPanel(int64_t panel, cpu::Bfloat16Bits* to) const {
  std::vector<float> merged;
  std::vector<cpu::Bfloat16Bits> rounded;
  PackParts(panel, [&](size_t part, int64_t row, int64_t num_rows, int64_t column) {
    const cpu::Bfloat16Bits* from = nullptr;
    if (HasAdapter(part)) {
      const int64_t num = num_rows * num_inputs_;
      merged.resize(static_cast<size_t>(num));
      rounded.resize(static_cast<size_t>(num));
      merged_[part]->Compute(row, num_rows, merged.data());
      cpu::BestPackedGemm().add_and_round(merged.data(), nullptr, num, rounded.data());
      from = rounded.data();
    } else {
      from = Bits(parts_[part].tensor.const_data_ptr<at::BFloat16>()) + row * num_inputs_;
    }
    cpu::PackPairColumns(from, num_inputs_, num_rows, num_inputs_, column, to);
  });
  cpu::ZeroPairColumns(num_inputs_, ColumnsOf(panel), to);
}

void PackedWeight::PackFloatPanel(int64_t panel) const {
  float* to = packed_.mutable_data_ptr<float>() + panel * cpu::FloatPanelElements(num_inputs_);
  std::vector<float> widened;
  PackParts(panel, [&](size_t i, int64_t row, int64_t num_rows, int64_t column) {
    const at::Tensor& part = parts_[i].tensor;
    const float* from = nullptr;
    if (HasAdapter(i)) {
      widened.resize(static_cast<size_t>(num_rows * num_inputs_));
      merged_[i]->Compute(row, num_rows, widened.data());
      from = widened.data();
    } else if (part.scalar_type() == at::kHalf) {
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

// Writes through pointers: an operation of ATen could not write into memory that was allocated in
// inference mode after that mode has ended.
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
  MultiplyPacked(x_MK, panels(), num_outputs_,
                 bias_N_.defined() ? bias_N_.const_data_ptr<float>() : nullptr, y_MN, gemm);
}

}  // namespace taopd
