#include "kernels/torch/sampling/row_sampling.h"

#include "kernels/torch/composed/sampling.h"
#include "kernels/torch/device_call.h"
#include "kernels/torch/kernel_choice.h"
#include "kernels/torch/upload.h"

namespace taopd {
namespace {

// Returns the rows that are drawn from, one per draw.
at::Tensor LogitsOf(const at::Tensor& logits_SV, const std::vector<RowToDraw>& rows) {
  bool in_order = static_cast<int64_t>(rows.size()) == logits_SV.size(0);
  std::vector<int64_t> indices;
  for (size_t i = 0; i < rows.size(); ++i) {
    in_order = in_order && rows[i].row == static_cast<int64_t>(i);
    indices.push_back(rows[i].row);
  }
  if (in_order) return logits_SV;
  return logits_SV.index_select(0, Upload(at::tensor(indices, at::kLong), logits_SV.device()));
}

// Runs the sampler's kernel; returns its results as SampleRowsComposed does.
at::Tensor RunSamplingKernel(const RowSampler& sampler, const at::Tensor& logits,
                             const at::Tensor& uniforms, const at::Tensor& temperatures) {
  const int64_t num = logits.size(0);
  const at::Tensor results = at::empty({4, num}, logits.options().dtype(at::kInt));
  const at::Tensor workspace =
      at::empty({sampler.workspace_bytes(num, logits.size(1))}, logits.options().dtype(at::kByte));
  const DeviceCall call(KernelKind::kSampling, logits);
  SampleRows problem;
  problem.num_rows = num;
  problem.vocab_size = logits.size(1);
  problem.logits_SV = logits.const_data_ptr<float>();
  problem.logits_stride = logits.stride(0);
  problem.uniforms_S = uniforms.const_data_ptr<double>();
  problem.temperatures_S = temperatures.const_data_ptr<float>();
  auto* const to = results.mutable_data_ptr<int32_t>();
  problem.ids_S = to;
  problem.invalid_S = to + num;
  problem.log_probs_S = reinterpret_cast<float*>(to + 2 * num);
  problem.raw_log_probs_S = reinterpret_cast<float*>(to + 3 * num);
  CheckLaunch(sampler.sample(problem, call.Context(workspace)));
  return results;
}

}  // namespace

RowSampler RowSamplerOn(at::Device device) {
  if (!UsesCustom(KernelKind::kSampling)) return {.composed = true};
#ifdef TAOPD_CUDA
  if (device.is_cuda()) return {SampleRowsCuda, SampleRowsWorkspaceBytes};
#endif
  return {};
}

std::vector<DrawnRow> DrawRows(const at::Tensor& logits_SV, const std::vector<RowToDraw>& rows,
                               const RowSampler& sampler) {
  if (rows.empty()) return {};
  TORCH_CHECK(
      logits_SV.dim() == 2 && logits_SV.scalar_type() == at::kFloat && logits_SV.stride(1) == 1,
      "logits must be rows of Float, are ", logits_SV.scalar_type(), " ", logits_SV.sizes());
  const auto num = static_cast<int64_t>(rows.size());
  const at::Tensor logits = LogitsOf(logits_SV, rows);
  // One copy brings the numbers to the device, and one brings the results back.
  const at::Tensor numbers = at::empty({2, num}, at::kDouble);
  auto* const uniforms = numbers.mutable_data_ptr<double>();
  auto* const temperatures = reinterpret_cast<float*>(uniforms + num);
  for (int64_t i = 0; i < num; ++i) {
    uniforms[i] = rows[i].uniform;
    temperatures[i] = rows[i].temperature;
  }
  const at::Tensor on_device = numbers.to(logits.device());
  const at::Tensor uniforms_S = on_device[0],
                   temperatures_S = on_device[1].view(at::kFloat).narrow(0, 0, num);
  const at::Tensor results = sampler.composed
                                 ? SampleRowsComposed(logits, uniforms_S, temperatures_S)
                                 : RunSamplingKernel(sampler, logits, uniforms_S, temperatures_S);
  const at::Tensor on_host = results.cpu();
  const auto* const ids = on_host.const_data_ptr<int32_t>();
  const auto* const log_probs = reinterpret_cast<const float*>(ids + 2 * num);
  std::vector<DrawnRow> drawn;
  for (int64_t i = 0; i < num; ++i) {
    drawn.push_back({ids[i], log_probs[i], log_probs[num + i], ids[num + i] != 0});
  }
  return drawn;
}

}  // namespace taopd
