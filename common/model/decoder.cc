#include "common/model/decoder.h"

#include <algorithm>

#ifdef TAOPD_CUDA
#include <cuda_runtime.h>

#include "common/model/cuda_requirements.h"
#endif

namespace taopd {
namespace {

#ifdef TAOPD_CUDA

struct CudaVersions {
  int driver = 0, runtime = 0;
};

CudaVersions AskForCudaVersions() {
  CudaVersions versions;
  // Neither call needs a driver or a device.
  cudaDriverGetVersion(&versions.driver);
  cudaRuntimeGetVersion(&versions.runtime);
  return versions;
}

// If the driver is too old, CUDA reports that there are no devices.
absl::Status CheckDriver(bool is_required) {
  const CudaVersions versions = AskForCudaVersions();
  if (versions.driver == 0 && !is_required) return absl::OkStatus();
  return CheckCudaDriver(versions.driver, versions.runtime);
}

absl::Status CheckArchitecture(int device) {
  int major = 0, minor = 0;
  for (const auto& [attribute, value] : {std::pair(cudaDevAttrComputeCapabilityMajor, &major),
                                         std::pair(cudaDevAttrComputeCapabilityMinor, &minor)}) {
    if (const cudaError_t error = cudaDeviceGetAttribute(value, attribute, device);
        error != cudaSuccess) {
      return FailedPrecondition("CUDA does not describe it: ", cudaGetErrorString(error));
    }
  }
  const CudaVersions versions = AskForCudaVersions();
  return CheckCudaArchitecture(TAOPD_CUDA_ARCHITECTURES, 10 * major + minor, versions.driver,
                               versions.runtime);
}

#else

absl::Status CheckDriver(bool is_required) {
  if (!is_required) return absl::OkStatus();
  return FailedPrecondition("it is built without CUDA (preset cpu)");
}
absl::Status CheckArchitecture(int) { return absl::OkStatus(); }

#endif

}  // namespace

PackedBatch PackedBatch::FromSequences(const std::vector<std::vector<int32_t>>& sequences,
                                       at::Device device) {
  PackedBatch batch;
  batch.cu_seqlens.reserve(sequences.size() + 1);
  batch.cu_seqlens.push_back(0);
  for (const auto& sequence : sequences) {
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + static_cast<int64_t>(sequence.size()));
  }
  at::Tensor ids_T = at::empty({batch.cu_seqlens.back()}, at::kLong);
  int64_t* next = ids_T.data_ptr<int64_t>();
  for (const auto& sequence : sequences) next = std::copy(sequence.begin(), sequence.end(), next);
  batch.token_ids_T = ids_T.to(device);
  return batch;
}

ScoringOutput Decoder::ScoreRows(const at::Tensor& hidden_NH, const at::Tensor& sampled_ids_N,
                                 const at::Tensor& candidate_ids_NM,
                                 const ScoringOptions& options) {
  return ScoreRowsOfHead(hidden_NH, lm_head(), sampled_ids_N, candidate_ids_NM, options);
}

absl::StatusOr<at::Device> ParseDevice(const std::string& text) {
  if (text == "cpu") return at::Device(at::kCPU);
  const int64_t num_devices = at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
  int64_t index = 0;
  if (text == "auto") {
    if (num_devices == 0) {
      // A GPU whose driver is too old must not be replaced by the CPU silently.
      TAOPD_RETURN_IF_ERROR(Annotate(CheckDriver(/*is_required=*/false),
                                     "device \"auto\" is undecided, cpu would work"));
      return at::Device(at::kCPU);
    }
  } else if (text != "cuda") {
    const std::string prefix = "cuda:";
    const std::string digits = text.starts_with(prefix) ? text.substr(prefix.size()) : "";
    if (digits.empty() || digits.size() > 3 ||
        digits.find_first_not_of("0123456789") != std::string::npos) {
      return InvalidArgument("device \"", text, "\" is not one of auto, cpu, cuda, cuda:<number>");
    }
    index = std::stoll(digits);
  }
  if (index >= num_devices) {
    const absl::Status driver = CheckDriver(/*is_required=*/true);
    return FailedPrecondition("device \"", text, "\" does not exist: this program sees ",
                              num_devices, " CUDA devices", driver.ok() ? "" : "; ",
                              std::string(driver.message()));
  }
  TAOPD_RETURN_IF_ERROR(Annotate(CheckArchitecture(static_cast<int>(index)),
                                 Concat("device \"", text, "\" cannot be used")));
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
}

}  // namespace taopd
