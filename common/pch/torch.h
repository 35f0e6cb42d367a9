// The precompiled header of every file that uses LibTorch. It is narrow on purpose: it has tensors,
// but no torch::nn, and no torch::autograd::Function, which few sources define.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

// tests/gpu builds the kernels where nothing but LibTorch is installed.
#if __has_include(<absl/status/status.h>) && __has_include(<nlohmann/json.hpp>)
#include "common/pch/base.h"
#endif
