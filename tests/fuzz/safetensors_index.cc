// Fuzz entry: a model.safetensors.index.json next to one shard with the tensors x and y. What opens
// has these tensors and no others.
#include "common/io/safetensors/safetensors.h"
#include "tests/fuzz/files.h"

namespace {

taopd::testing::ScratchDir* MakeModel() {
  static taopd::testing::ScratchDir dir;
  constexpr std::array<std::byte, 8> kBytes{};
  const absl::Status written = taopd::WriteSafetensors(
      dir.path() + "/a.safetensors", {{"x", "F32", {2}, kBytes}, {"y", "F32", {2}, kBytes}});
  TAOPD_CHECK(written.ok());
  return &dir;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const taopd::testing::ScratchDir* const dir = MakeModel();
  dir->Write("model.safetensors.index.json", {reinterpret_cast<const char*>(data), size});
  const auto model = taopd::OpenSafetensorsModel(dir->path());
  if (model.ok()) {
    TAOPD_CHECK_EQ(model->tensors.size(), size_t{2});
  } else {
    TAOPD_CHECK(!model.status().message().empty());
  }
  return 0;
}
