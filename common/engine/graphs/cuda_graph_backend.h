// CUDA graphs by at::cuda::CUDAGraph. This file has never run, for lack of a GPU.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "common/base/status.h"
#include "common/engine/graphs/graph_backend.h"

namespace taopd {

// Returns INVALID_ARGUMENT for a device that is not CUDA, and UNIMPLEMENTED in a build without
// CUDA.
absl::StatusOr<std::unique_ptr<GraphBackend>> MakeCudaGraphBackend(at::Device device);

}  // namespace taopd
