// Tensors of safetensors files as LibTorch tensors.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "common/io/safetensors/safetensors.h"

namespace taopd {

// Returns a tensor on the mapped bytes, which it keeps alive. They are read-only: the tensor must
// not be written. If the bytes are not aligned to their type, which the format does not promise,
// the tensor is a copy. REQUIRES: the view has a dtype of ScalarTypeOfSafetensors.
at::Tensor StoredTensor(const TensorView& view, std::shared_ptr<const SafetensorsFile> file);

}  // namespace taopd
