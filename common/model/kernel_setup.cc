#include "common/model/kernel_setup.h"

#include <atomic>

#include "common/model/decoder.h"
#include "kernels/torch/kernel_choice.h"
#ifdef TAOPD_CUDA
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

#include "common/base/log.h"
#include "common/model/config/dtype.h"
#include "common/model/device_failure.h"
#include "kernels/torch/data_type.h"
#include "kernels/torch/self_check/self_check.h"
#endif

namespace taopd {
namespace {

std::atomic<int64_t> num_left_out{0};

#ifdef TAOPD_CUDA
absl::StatusOr<SelfCheckShape> ShapeOf(const ModelConfig& config, const KernelUse& use,
                                       at::Device device) {
  TAOPD_ASSIGN_OR_RETURN(const DataType type,
                         ParseDtype(use.dtype, config.dtype.empty() ? "float32" : config.dtype));
  SelfCheckShape shape;
  shape.device = device;
  shape.dtype = ScalarTypeOf(type);
  shape.hidden_size = config.hidden_size;
  shape.intermediate_size = config.intermediate_size;
  shape.vocab_size = config.vocab_size;
  shape.num_heads = config.num_attention_heads;
  shape.num_kv_heads = config.num_key_value_heads;
  shape.head_size = config.head_dim;
  shape.qk_norm = config.qk_norm;
  shape.eps = config.rms_norm_eps;
  shape.sliding_window = config.sliding_window;
  shape.max_len = use.max_len > 0 ? use.max_len : config.max_position_embeddings;
  shape.top_k = use.top_k;
  shape.trains = use.trains;
  return shape;
}

absl::Status CheckOnDevice(const SelfCheckShape& shape) {
  const std::vector<KernelVerdict> verdicts =
      CheckKernels(shape, LinkedKernels(), SelfCheckOptions());
  for (const KernelVerdict& verdict : verdicts) {
    // On most devices the composition of prefill attention is faster, which is not a fault.
    if (verdict.outcome == KernelVerdict::Outcome::kTrusted ||
        verdict.outcome == KernelVerdict::Outcome::kSlower) {
      LogInfo(Describe(verdict));
    } else {
      LogWarning(Describe(verdict));
    }
    if (verdict.outcome == KernelVerdict::Outcome::kHangs || verdict.device_is_lost) {
      return DeviceFailure("the check of the kernels at the start lost ", shape.device.str(), ": ",
                           Describe(verdict), "; --kernels composed avoids them");
    }
  }
  UseKernels(TrustedKernels(verdicts));
  num_left_out = std::count_if(verdicts.begin(), verdicts.end(),
                               [](const KernelVerdict& verdict) { return !verdict.IsUsed(); });
  // The memory plan asks the device how much is free.
  c10::getDeviceAllocator(shape.device.type())->emptyCache();
  return absl::OkStatus();
}
#endif

}  // namespace

absl::Status SetUpKernels(const KernelUse& use,
                          const std::function<absl::StatusOr<ModelConfig>()>& read_config) {
  TAOPD_ASSIGN_OR_RETURN(const at::Device device, ParseDevice(use.device));
  const bool is_composed = use.kernels == KernelMode::kComposed;
  UseKernels(is_composed ? KernelChoice::Composed() : KernelChoice::Custom());
  num_left_out = 0;
  if (use.kernels != KernelMode::kAuto || device.is_cpu()) return absl::OkStatus();
#ifdef TAOPD_CUDA
  TAOPD_ASSIGN_OR_RETURN(const ModelConfig config, read_config());
  TAOPD_ASSIGN_OR_RETURN(const SelfCheckShape shape, ShapeOf(config, use, device));
  // float16 has no kernels.
  if (shape.dtype != at::kHalf) return CheckOnDevice(shape);
#endif
  return absl::OkStatus();
}

absl::Status SetUpKernels(const KernelUse& use, const std::string& model_dir) {
  return SetUpKernels(use, [&] { return LoadModelConfig(model_dir); });
}

int64_t NumKernelsLeftOut() { return num_left_out; }

}  // namespace taopd
