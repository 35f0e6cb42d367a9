// The way in which a client reaches the servers of one teacher, and the function that makes it.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/wire/teacher_protocol.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// retry_policy.h says which failures are retried.
struct TeacherClientOptions {
  // Servers of the same model, all of one protocol (transport/teacher_protocols.h).
  std::vector<std::string> endpoints;
  absl::Duration request_timeout = absl::Seconds(120);  // limit of one attempt
  // Limit of one request, attempts and pauses together, counted from its first failure. For a
  // request that waits in the client, the time in which every endpoint fails counts as well.
  absl::Duration outage_budget = absl::Minutes(30);
  int64_t max_in_flight_per_endpoint = 64;       // requests beyond it wait in the client
  int64_t max_message_bytes = kMaxMessageBytes;  // of gRPC
  // The n-th pause is uniform in [0, min(max_backoff, initial_backoff * 2^(n-1))].
  absl::Duration initial_backoff = absl::Milliseconds(250);
  absl::Duration max_backoff = absl::Seconds(30);
  // If false, the first failure of a request is its answer; for measurements.
  bool retry = true;
  // After this time without an answer a second endpoint is asked as well. Infinite: never.
  absl::Duration hedge_after = absl::InfiniteDuration();

  // For grpcs:// and https:// endpoints. Files in PEM format.
  std::string tls_ca_file;    // who signed the servers' certificates; empty: the system's list
  std::string tls_cert_file;  // of this client; empty: it has none
  std::string tls_key_file;
  std::string api_key;  // sent as "authorization: Bearer KEY"; empty: none

  // For vLLM and SGLang, which do not tell what they can do.
  std::string model;         // as the server names it; empty: the first that it lists
  int64_t probe_top_k = 16;  // Connect asks for so many log-probs per position

  // The revision that every endpoint must serve, as TeacherInfo has it; empty: any, but all the
  // same.
  std::string revision;
};

// Makes a client; it does not connect yet. Returns INVALID_ARGUMENT if an endpoint is malformed,
// endpoints are of different kinds, an option is out of range or a TLS file cannot be read. The
// proxies of the environment are ignored, because teachers are expected in the same network.
// `clock` must outlive the client.
absl::StatusOr<std::unique_ptr<TeacherClient>> MakeNetworkTeacherClient(
    const TeacherClientOptions& options, Clock* clock = Clock::Real());

}  // namespace taopd
