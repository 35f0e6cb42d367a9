// The safetensors format: u64 little-endian header length, a JSON header, the bytes of the tensors.
// Reading is by mmap; nothing is trusted: every rule of the reference implementation's validation
// is checked, and errors (DATA_LOSS) name the file, the tensor and the value. A file must not be
// truncated while it is mapped: reading behind its new end kills the process, so replace files by
// renaming. Tensors smaller than a byte a value (F4, F6) are not supported.
//
// Knows nothing of LibTorch; common/model turns views into tensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct TensorView {
  std::string dtype;           // as in the file: "F32", "BF16", "F16", "I64", ...
  std::vector<int64_t> shape;  // rank 0 and zero sizes are legal
  // Into the mapping; valid while the file object lives. Not aligned to the dtype in general.
  std::span<const std::byte> bytes;
};

// Bytes of one value of a dtype, or INVALID_ARGUMENT for an unknown one.
absl::StatusOr<int64_t> SafetensorsDtypeSize(const std::string& dtype);

// One mapped file. Immutable, any thread. Shared, so that tensors made from views can keep it
// alive.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::shared_ptr<const SafetensorsFile>> Open(const std::string& path);
  virtual ~SafetensorsFile() = default;
  virtual const std::map<std::string, TensorView>& tensors() const = 0;
  virtual const std::map<std::string, std::string>& metadata() const = 0;
  virtual const std::string& path() const = 0;
  // Says that a tensor's bytes are not needed for now, so that they stop counting as this process's
  // memory. They read as before if they are needed again.
  virtual void Release(const TensorView& tensor) const = 0;
};

// All files of a model directory: model.safetensors, or the shards that
// model.safetensors.index.json names (bare file names inside the directory, each present, no tensor
// twice, the index and the shards in agreement).
struct SafetensorsModel {
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  // Views by name, and the file that holds each.
  std::map<std::string, std::pair<TensorView, std::shared_ptr<const SafetensorsFile>>> tensors;
};
absl::StatusOr<SafetensorsModel> OpenSafetensorsModel(const std::string& model_dir);

struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// Writes atomically (temporary name in the same directory, fsync, rename, fsync of the directory).
// The header is padded so that the data starts 8-byte aligned. Tensors keep the order given.
absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace taopd
