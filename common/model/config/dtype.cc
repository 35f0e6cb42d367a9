#include "common/model/config/dtype.h"

namespace taopd {
namespace {

struct DtypeNames {
  DataType dtype;
  const char* in_config;
  const char* in_safetensors;
};
constexpr DtypeNames kDtypes[] = {{DataType::kFloat32, "float32", "F32"},
                                  {DataType::kBFloat16, "bfloat16", "BF16"},
                                  {DataType::kFloat16, "float16", "F16"}};

}  // namespace

std::string ConfigDtype(DataType dtype) { return kDtypes[static_cast<int>(dtype)].in_config; }

std::string SafetensorsDtype(DataType dtype) {
  return kDtypes[static_cast<int>(dtype)].in_safetensors;
}

std::optional<DataType> DataTypeOfSafetensors(const std::string& name) {
  for (const DtypeNames& names : kDtypes) {
    if (name == names.in_safetensors) return names.dtype;
  }
  return std::nullopt;
}

absl::StatusOr<DataType> ParseDtype(const std::string& text, const std::string& stored_dtype) {
  const std::string& name = text == "auto" ? stored_dtype : text;
  for (const DtypeNames& names : kDtypes) {
    if (name == names.in_config) return names.dtype;
  }
  return InvalidArgument("dtype \"", name, "\"", text == "auto" ? " of the stored weights" : "",
                         " is not implemented; name float32, bfloat16 or float16");
}

}  // namespace taopd
