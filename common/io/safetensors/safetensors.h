// The safetensors format: a little-endian u64 with the header's length, a JSON header, and the
// bytes of the tensors.
//
// Files are read through mmap. Their content is not trusted: every rule that the reference
// implementation validates is checked, and errors (DATA_LOSS) name the file, the tensor and the
// value. A file must not be truncated while it is mapped, because reading beyond its new end kills
// the process; replace files by renaming. Dtypes with values smaller than a byte (F4, F6) are not
// supported.
//
// This header does not depend on LibTorch; common/model turns views into tensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct TensorView {
  std::string dtype;           // as the file spells it: "F32", "BF16", "F16", "I64", ...
  std::vector<int64_t> shape;  // rank 0 and zero sizes are legal
  // Points into the mapping and is valid during the lifetime of the file object. Not aligned to the
  // dtype in general.
  std::span<const std::byte> bytes;
};

// Returns the size of one value of a dtype. Returns INVALID_ARGUMENT for an unknown dtype.
absl::StatusOr<int64_t> SafetensorsDtypeSize(const std::string& dtype);

// One mapped file. Immutable and thread-safe. It is shared, so that tensors made from its views can
// keep it alive.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::shared_ptr<const SafetensorsFile>> Open(const std::string& path);
  // Unmaps the file.
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }
  // Tells the kernel that a tensor's bytes are not needed for now, so that they no longer count as
  // this process's memory. They can still be read.
  void Release(const TensorView& tensor) const;

 private:
  SafetensorsFile(std::string path, std::span<const std::byte> mapped)
      : path_(std::move(path)), mapped_(mapped) {}
  // Sets the tensors and the metadata.
  absl::Status ReadHeader();

  const std::string path_;
  const std::span<const std::byte> mapped_;  // the whole file
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

// All files of a model directory: model.safetensors, or the shards that
// model.safetensors.index.json names. Shards are bare file names inside the directory. All of them
// must be present, no tensor may occur twice, and the index must agree with the shards.
struct SafetensorsModel {
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  // The view of each tensor by its name, and the file that contains it.
  std::map<std::string, std::pair<TensorView, std::shared_ptr<const SafetensorsFile>>> tensors;
};
absl::StatusOr<SafetensorsModel> OpenSafetensorsModel(const std::string& model_dir);

// The names of these files.
inline constexpr char kSafetensorsFile[] = "model.safetensors";
inline constexpr char kSafetensorsIndex[] = "model.safetensors.index.json";

struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// Writes a file atomically (AtomicFile). The header is padded so that the data is 8-byte aligned.
// Tensors are written in the given order.
absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace taopd
