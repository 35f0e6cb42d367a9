// A client of the servers of one teacher: its options, and the function that makes it.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/wire/client_credentials.h"
#include "common/wire/teacher_protocol.h"
#include "trainer/teacher/retry_policy.h"

namespace taopd {

// RetryOptions::jitter_seed is not used: the client draws a seed of its own.
struct TeacherClientOptions : RetryOptions, ClientCredentials {
  int64_t max_message_bytes = kMaxMessageBytes;  // of gRPC

  // For vLLM and SGLang, which do not tell what they can do.
  std::string model;         // as the server names it; if empty, the first that it lists
  int64_t probe_top_k = 16;  // Connect asks for this many log-probs per position

  // The revision that every endpoint must serve, as TeacherInfo has it. If empty, any revision is
  // accepted, but all endpoints must serve the same one.
  std::string revision;
};

// Makes a client; it does not connect yet. Returns INVALID_ARGUMENT if an endpoint is malformed,
// endpoints are of different kinds, an option is out of range or a TLS file cannot be read. The
// proxies of the environment are ignored, because teachers are expected in the same network.
// `clock` must outlive the client.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeNetworkTeacherClient(
    const TeacherClientOptions& options, Clock* clock = Clock::Real());

}  // namespace taopd
