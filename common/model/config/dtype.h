// The names that files and settings have for the types of weights. All functions are pure.
#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "taopd/base/data_type.h"

namespace taopd {

// Returns the name in config.json: "float32", "bfloat16" or "float16".
std::string ConfigDtype(DataType dtype);
// Returns the name in safetensors files: "F32", "BF16" or "F16".
std::string SafetensorsDtype(DataType dtype);
// Returns nullopt for names of other types, in which decoders do not compute.
std::optional<DataType> DataTypeOfSafetensors(const std::string& name);

// Parses a setting: a name of config.json or "auto", which means `stored_dtype`. Returns
// INVALID_ARGUMENT for unknown names.
absl::StatusOr<DataType> ParseDtype(const std::string& text, const std::string& stored_dtype);

}  // namespace taopd
