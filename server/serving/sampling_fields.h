// The sampling fields that are single numbers, under vLLM's names and with vLLM's ranges, in one
// table. Requests in JSON and in messages of protobuf and a model's generation_config.json are read
// by it, and it describes the fields in /openapi.json and /docs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/engine/engine.h"

namespace taopd {

struct SamplingField {
  const char* name;
  const char* range;  // for messages: "must be in [0, 2]"
  const char* doc;    // for people
  bool (*in_range)(double value);
  bool is_integer;
  bool in_generation_config;  // the model's generation_config.json may give the default
  // REQUIRES: the value is in the range, and whole if is_integer is true.
  void (*set)(double value, SamplingParams* sampling);
  double (*get)(const SamplingParams& sampling);
};

std::span<const SamplingField> SamplingFields();

// Returns INVALID_ARGUMENT, in vLLM's words, if the value is not in the field's range.
absl::Status SetSamplingField(const SamplingField& field, double value, SamplingParams* sampling);

// Returns the seed of choice `index` of a prompt: seed + index or, if there is no seed, a new one
// each time.
uint64_t SequenceSeed(std::optional<uint64_t> seed, uint64_t index);

// Estimate the memory of a copy. Each sequence of a request has its own copy of the sampling fields
// and of the stop strings, so a small request for many sequences may need much memory.
int64_t SamplingBytes(const SamplingParams& sampling);
int64_t StringsBytes(std::span<const std::string> strings);

// Returns the sampling of requests that set no fields: the values of generation_config.json in
// `model_dir`, otherwise the defaults. Other keys of that file are ignored, and the file need not
// exist. Returns INVALID_ARGUMENT naming the path, the key and the value if a value has the wrong
// type or is out of range.
absl::StatusOr<SamplingParams> LoadSamplingDefaults(const std::string& model_dir);

}  // namespace taopd
