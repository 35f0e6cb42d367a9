// The sampling that a model's generation_config.json asks for. Thread-safe.
#pragma once

#include <string>

#include "common/base/status.h"
#include "common/engine/engine.h"

namespace taopd {

// Returns the sampling of requests that set no fields: the values of generation_config.json in
// `model_dir`, otherwise the defaults. Other keys of that file are ignored, and the file need not
// exist. Returns INVALID_ARGUMENT naming the path, the key and the value if a value has the wrong
// type or is out of range.
absl::StatusOr<SamplingParams> LoadSamplingDefaults(const std::string& model_dir);

}  // namespace taopd
