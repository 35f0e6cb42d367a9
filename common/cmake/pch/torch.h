// The precompiled header of every file that uses LibTorch. Narrow on purpose: tensors and autograd,
// no torch::nn.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/grad_mode.h>

// tests/gpu builds the kernels where nothing but LibTorch is installed.
#if __has_include(<absl/status/status.h>) && __has_include(<nlohmann/json.hpp>)
#include "common/cmake/pch/base.h"
#endif
