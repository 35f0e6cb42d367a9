// The frames by which the guard speaks itself.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace taopd {

// RST_STREAM with CANCEL.
std::string ResetFrame(uint32_t stream);

// A call's status, as gRPC's trailers, and a RST_STREAM that tells the client to send no more. The
// trailers come with HTTP's status unless the call has had headers. None for an OK status. The
// names and values are not compressed, so that the server's compression is not disturbed.
std::string RefusalFrames(uint32_t stream, bool has_headers, const absl::Status& status);

// GOAWAY with ENHANCE_YOUR_CALM, or PROTOCOL_ERROR for INVALID_ARGUMENT.
std::string GoAwayFrame(uint32_t last_stream, const absl::Status& why);

}  // namespace taopd
