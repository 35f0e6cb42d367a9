// Tensors of safetensors files as LibTorch's.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "common/io/safetensors/safetensors.h"

namespace taopd {

// A tensor on the mapped bytes, which it keeps alive. They are read-only: nobody may write to it.
// Where they are not aligned to their type, which the format does not promise, it is a copy.
// REQUIRES: the view has a dtype of ScalarTypeOfSafetensors.
at::Tensor StoredTensor(const TensorView& view, std::shared_ptr<const SafetensorsFile> file);

}  // namespace taopd
