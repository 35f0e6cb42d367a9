#include "common/io/safetensors/safetensors.h"

#include <nlohmann/json.hpp>
#include <set>

#include "common/io/atomic_file.h"
#include "common/io/safetensors/safetensors_header.h"

namespace taopd {

absl::Status WriteSafetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names = {"__metadata__"};
  int64_t position = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::string where = Concat(path, ": tensor \"", tensor.name, "\"");
    if (!names.insert(tensor.name).second) {
      return InvalidArgument(where, ": the name is taken or reserved");
    }
    TAOPD_ASSIGN_OR_RETURN(const int64_t size_bytes,
                           Annotate(SafetensorsTensorBytes(tensor.dtype, tensor.shape), where));
    if (size_bytes != static_cast<int64_t>(tensor.bytes.size())) {
      return InvalidArgument(where, " has ", tensor.bytes.size(),
                             " bytes, but its shape and dtype need ", size_bytes);
    }
    // emplace_back is used because operator[] of an ordered object searches from the start every
    // time.
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        tensor.name, nlohmann::ordered_json{{"dtype", tensor.dtype},
                                            {"shape", tensor.shape},
                                            {"data_offsets", {position, position + size_bytes}}});
    position += size_bytes;
  }

  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& e) {
    return InvalidArgument(path, ": a name or metadata is not UTF-8: ", e.what());
  }
  text.append(
      (kSafetensorsLengthBytes - text.size() % kSafetensorsLengthBytes) % kSafetensorsLengthBytes,
      ' ');
  if (static_cast<int64_t>(text.size()) > kMaxSafetensorsHeaderBytes) {
    return InvalidArgument(path, ": header of ", text.size(), " bytes exceeds the limit of ",
                           kMaxSafetensorsHeaderBytes);
  }
  std::string length(kSafetensorsLengthBytes, '\0');
  for (int i = 0; i < kSafetensorsLengthBytes; ++i) {
    length[i] = static_cast<char>((text.size() >> (8 * i)) & 0xff);
  }

  TAOPD_ASSIGN_OR_RETURN(auto file, AtomicFile::Create(path));
  TAOPD_RETURN_IF_ERROR(file->Write(length + text));
  for (const TensorToWrite& tensor : tensors) TAOPD_RETURN_IF_ERROR(file->Write(tensor.bytes));
  return file->Commit();
}

}  // namespace taopd
