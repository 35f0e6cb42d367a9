// Computes the memory of a parsed message from its bytes, before protobuf parses it.
//
// protobuf makes an object of every element: an empty string of a repeated field, two bytes on the
// wire, takes 64 bytes, and so does a field that the message's type does not have. A message of
// 64 MiB could take 2 GiB.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/zero_copy_stream.h>

#include <cstdint>

#include "common/base/status.h"

namespace taopd {

// Reads the `num_bytes` of `bytes` as a message of `type`, which is one of this program's, and
// returns an upper bound of the memory that the parsed message takes: objects, texts, arrays with
// their spare space, and fields that the type does not have. While an array grows, protobuf holds
// half of it a second time. The function itself needs little memory. It reads everything that
// protobuf would accept. Errors:
//   INVALID_ARGUMENT  the bound exceeds `max_bytes`, which the function notices without reading on;
//                     the bytes are malformed or nested too deeply. The text names the type, the
//                     bytes and the limit
absl::StatusOr<int64_t> ParsedSize(const google::protobuf::Descriptor& type, int num_bytes,
                                   int64_t max_bytes,
                                   google::protobuf::io::ZeroCopyInputStream* bytes);

}  // namespace taopd
