// Converts the sampling parameters of messages. Thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "common/engine/engine_request.h"
#include "proto/taopd/v1/teacher.pb.h"

namespace taopd {

// Sets the numbers of sampling_fields.h that `message` has under their names: optional fields that
// are set, and other fields that are not 0. Returns INVALID_ARGUMENT, in the words of that table,
// if a value is out of range.
absl::Status ApplySamplingNumbers(const google::protobuf::Message& message,
                                  SamplingParams* sampling);

// Copies ids from the wire. Returns INVALID_ARGUMENT naming the field, the index and the value if
// one is not a 31-bit number; the engine judges the rest.
template <typename Ids>
absl::StatusOr<std::vector<int32_t>> TokenIds(const char* field, const Ids& ids) {
  std::vector<int32_t> out;
  out.reserve(static_cast<size_t>(ids.size()));
  for (const uint32_t id : ids) {
    if (id > static_cast<uint32_t>(INT32_MAX))
      return InvalidArgument(field, "[", out.size(), "] is ", id, ": must be at most ", INT32_MAX);
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

// Sets the parameters that `options` has, and keeps the others.
absl::Status ApplySamplingOptions(const v1::SamplingOptions& options, SamplingParams* sampling);

}  // namespace taopd
