// The members of SamplingParams that are single numbers, under vLLM's names and with vLLM's ranges,
// in one table. The engine checks requests with it. With it, a server reads requests in JSON and
// protobuf and a model's generation_config.json, and describes the fields in /openapi.json and
// /docs.
#pragma once

#include <span>

#include "common/base/status.h"
#include "common/engine/engine_request.h"

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

}  // namespace taopd
