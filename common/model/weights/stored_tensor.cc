#include "common/model/weights/stored_tensor.h"

#include <cstring>
#include <utility>

#include "common/model/weights/weights.h"

namespace taopd {

absl::Status CheckTensor(const std::string& name, const TensorView& view,
                         const std::vector<int64_t>& shape) {
  if (view.shape != shape) {
    return InvalidArgument("tensor ", name, " has shape ", at::IntArrayRef(view.shape),
                           ", the configuration asks for ", at::IntArrayRef(shape));
  }
  if (ScalarTypeOfSafetensors(view.dtype)) return absl::OkStatus();
  return InvalidArgument("tensor ", name, " has dtype ", view.dtype, ", not one of F32, BF16, F16");
}

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

absl::Status WriteTensors(const std::string& path, const std::vector<NamedParameter>& tensors) {
  std::vector<at::Tensor> on_cpu;  // keeps the bytes alive
  std::vector<TensorToWrite> to_write;
  for (const auto& [name, tensor] : tensors) {
    on_cpu.push_back(tensor.detach().to(at::kCPU).contiguous());
    const auto* const bytes = static_cast<const std::byte*>(on_cpu.back().const_data_ptr());
    to_write.push_back({name, SafetensorsDtype(tensor.scalar_type()), tensor.sizes().vec(),
                        std::span(bytes, tensor.nbytes())});
  }
  // transformers refuses files whose metadata does not name a format.
  return WriteSafetensors(path, to_write, {{"format", "pt"}});
}

}  // namespace taopd
