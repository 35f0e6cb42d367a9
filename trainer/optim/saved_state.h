// The common parts of the files of an optimizer's state, written by one rank or by several.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/io/safetensors/safetensors.h"

namespace taopd {

// Tensors are named after their parameter, with these in front. A file has master copies and
// averages only if the optimizer that wrote it had them.
inline constexpr char kExpAvgPrefix[] = "exp_avg.";
inline constexpr char kExpAvgSqPrefix[] = "exp_avg_sq.";
inline constexpr char kMasterPrefix[] = "master.";
inline constexpr char kAveragePrefix[] = "average.";

// The tensors of a file that is to be written. The object keeps their bytes alive.
class StateToWrite {
 public:
  explicit StateToWrite(int64_t num_updates) : num_updates_(num_updates) {}

  // Adds float32 or bfloat16 values under a name. Write writes the values at the time of its call
  // or, with `copies`, those at the time of this call.
  void Add(const std::string& name, std::vector<int64_t> shape, const at::Tensor& values,
           bool copies = false);
  absl::Status Write(const std::string& path,
                     std::map<std::string, std::string> metadata = {}) const;

 private:
  const int64_t num_updates_;
  std::vector<at::Tensor> on_cpu_;
  std::vector<TensorToWrite> tensors_;
};

// Returns the number of updates in the file's metadata, or DATA_LOSS if there is none.
absl::StatusOr<int64_t> NumUpdatesOf(const SafetensorsFile& file);

// Returns whether the state's tensor `name` may be stored in this dtype of safetensors: float32 or,
// for moments, bfloat16.
bool IsStateDtype(const std::string& name, const std::string& dtype);

}  // namespace taopd
