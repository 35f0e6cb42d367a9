// The frames that the guard sends itself.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace taopd {

// Returns RST_STREAM with CANCEL.
std::string ResetFrame(uint32_t stream);

// Returns a call's status in gRPC's trailers, and a RST_STREAM that tells the client to send no
// more. The trailers include HTTP's status unless the call has had headers. Returns nothing for an
// OK status. Names and values are not compressed, so that the server's compression state is not
// disturbed.
std::string RefusalFrames(uint32_t stream, bool has_headers, const absl::Status& status);

// Returns GOAWAY with ENHANCE_YOUR_CALM, or with PROTOCOL_ERROR for INVALID_ARGUMENT.
std::string GoAwayFrame(uint32_t last_stream, const absl::Status& why);

}  // namespace taopd
