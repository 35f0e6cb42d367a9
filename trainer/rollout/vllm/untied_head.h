// A model directory with an output head of its own, made from one whose head is tied to the
// embedding. It is for servers that keep head and embedding apart.
#pragma once

#include <memory>
#include <string>

#include "common/base/status.h"

namespace taopd {

// The directory exists while the object does. Its files are links to the original's, which must
// stay, and lm_head.safetensors, a copy of the embedding. It has no index of shards: readers take
// all files.
class UntiedHead {
 public:
  // Makes `path`, which must be beside `model_dir`, and replaces what a killed process has left
  // there. Returns DATA_LOSS if the model has no embedding, and errors of the file system.
  static absl::StatusOr<std::unique_ptr<UntiedHead>> Make(const std::string& model_dir,
                                                          const std::string& path);
  ~UntiedHead();
  UntiedHead(const UntiedHead&) = delete;
  UntiedHead& operator=(const UntiedHead&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit UntiedHead(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

}  // namespace taopd
