#include "common/model/weights/stored_tensor.h"

#include <cstring>
#include <utility>

#include "common/model/weights/weights.h"

namespace taopd {

at::Tensor StoredTensor(const TensorView& view, std::shared_ptr<const SafetensorsFile> file) {
  const auto options = at::TensorOptions().dtype(*ScalarTypeOfSafetensors(view.dtype));
  // from_blob wants a pointer to non-const; nothing writes through it.
  void* data = const_cast<std::byte*>(view.bytes.data());
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address % c10::elementSize(*ScalarTypeOfSafetensors(view.dtype)) != 0) {
    const at::Tensor copy = at::empty(view.shape, options);
    std::memcpy(copy.mutable_data_ptr(), data, view.bytes.size());
    return copy;
  }
  return at::from_blob(
      data, view.shape, [file = std::move(file)](void*) {}, options);
}

}  // namespace taopd
