// Lists of numbers in the safetensors files of stored rollouts, by name. A file leaves out empty
// lists, and a list that no file has is read as empty.
#pragma once

#include <cstring>
#include <type_traits>

#include "common/io/file.h"
#include "common/io/safetensors/safetensors.h"

namespace taopd {

// Returns the name of a type of numbers in safetensors files: "I32", "F64".
template <typename T>
std::string NumberDtype() {
  return Concat(std::is_integral_v<T> ? "I" : "F", 8 * sizeof(T));
}

// Reads the lists of all files of a directory.
class NumberListReader {
 public:
  absl::Status Open(const std::string& dir) {
    TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(dir));
    for (const std::string& name : names) {
      TAOPD_ASSIGN_OR_RETURN(files_.emplace_back(), SafetensorsFile::Open(dir + "/" + name));
      for (const auto& [list, view] : files_.back()->tensors()) lists_.emplace(list, view);
    }
    return absl::OkStatus();
  }
  // Leaves *values as it is if no file has the list. Returns DATA_LOSS if its numbers have another
  // type.
  template <typename T>
  absl::Status operator()(const std::string& name, std::vector<T>* values) const {
    const auto found = lists_.find(name);
    if (found == lists_.end()) return absl::OkStatus();
    const TensorView& view = found->second;
    if (view.dtype != NumberDtype<T>()) {
      return DataLoss("stored rollouts: ", name, " has the type ", view.dtype, " instead of ",
                      NumberDtype<T>());
    }
    values->resize(view.bytes.size() / sizeof(T));
    std::memcpy(values->data(), view.bytes.data(), values->size() * sizeof(T));
    return absl::OkStatus();
  }

 private:
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, TensorView> lists_;
};

// Writes lists to one file.
class NumberListWriter {
 public:
  // Adds a list, which must outlive Write. Cannot fail.
  template <typename T>
  absl::Status operator()(const std::string& name, const std::vector<T>* values) {
    if (values->empty()) return absl::OkStatus();
    const auto bytes = std::as_bytes(std::span<const T>(*values));
    lists_.push_back({name, NumberDtype<T>(), {static_cast<int64_t>(values->size())}, bytes});
    return absl::OkStatus();
  }
  absl::Status Write(const std::string& path) const { return WriteSafetensors(path, lists_); }

 private:
  std::vector<TensorToWrite> lists_;
};

}  // namespace taopd
