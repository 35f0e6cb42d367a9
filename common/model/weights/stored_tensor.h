// Tensors of safetensors files as LibTorch tensors.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "common/io/safetensors/safetensors.h"
#include "common/model/decoder.h"

namespace taopd {

// Returns INVALID_ARGUMENT with the tensor's name if its shape or type is not the model's.
absl::Status CheckTensor(const std::string& name, const TensorView& view,
                         const std::vector<int64_t>& shape);

// Returns a tensor on the mapped bytes, which it keeps alive. They are read-only: the tensor must
// not be written. If the bytes are not aligned to their type, which the format does not promise,
// the tensor is a copy. REQUIRES: the view has a dtype of ScalarTypeOfSafetensors.
at::Tensor StoredTensor(const TensorView& view, std::shared_ptr<const SafetensorsFile> file);

// Writes a file with these tensors, of any device.
absl::Status WriteTensors(const std::string& path, const std::vector<NamedParameter>& tensors);

}  // namespace taopd
