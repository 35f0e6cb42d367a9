// What the files of an optimizer's state have in common, whether one rank wrote them or several.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/io/safetensors/safetensors.h"

namespace taopd {

// Tensors of a file to be written. It keeps their bytes alive.
class StateToWrite {
 public:
  explicit StateToWrite(int64_t num_updates) : num_updates_(num_updates) {}

  // Adds float32 or bfloat16 values under a name: what they are when Write is called or, with
  // `copies`, what they are now.
  void Add(const std::string& name, std::vector<int64_t> shape, const at::Tensor& values,
           bool copies = false);
  absl::Status Write(const std::string& path,
                     std::map<std::string, std::string> metadata = {}) const;

 private:
  const int64_t num_updates_;
  std::vector<at::Tensor> on_cpu_;
  std::vector<TensorToWrite> tensors_;
};

// The number of updates that the file's metadata names. Returns DATA_LOSS if it names none.
absl::StatusOr<int64_t> NumUpdatesOf(const SafetensorsFile& file);

// Whether the state's tensor `name` may be stored in this dtype of safetensors: float32, or, for
// moments, bfloat16.
bool IsStateDtype(const std::string& name, const std::string& dtype);

}  // namespace taopd
