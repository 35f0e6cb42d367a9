// The data of tensors as the kernels take it: null for a tensor that is undefined or empty.
#pragma once

#include <ATen/ATen.h>

#include <type_traits>

namespace taopd {

template <typename T = void>
const T* DataOrNull(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return nullptr;
  if constexpr (std::is_void_v<T>) {
    return tensor.const_data_ptr();
  } else {
    return tensor.const_data_ptr<T>();
  }
}

template <typename T = void>
T* MutableDataOrNull(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return nullptr;
  if constexpr (std::is_void_v<T>) {
    return tensor.mutable_data_ptr();
  } else {
    return tensor.mutable_data_ptr<T>();
  }
}

}  // namespace taopd
