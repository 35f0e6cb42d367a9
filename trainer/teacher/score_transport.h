// The seam between the retrying client and the network: one attempt to have one sequence scored by
// one endpoint. Implementations: gRPC (transport/grpc_transport.h), HTTP
// (transport/http_transport.h), and scripted ones in tests.
#pragma once

#include <absl/time/time.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "trainer/teacher/teacher_client.h"

namespace taopd {

class ScoreTransport {
 public:
  struct Result {
    absl::StatusOr<TeacherScores> scores;  // verified by the transport
    // How long the endpoint asks to be left alone. Negative: the request must not be tried again.
    std::optional<absl::Duration> pushback;
    int64_t bytes_sent = 0;
    int64_t bytes_received = 0;
  };
  virtual ~ScoreTransport() = default;
  // Returns INVALID_ARGUMENT for a request that this transport can never carry.
  virtual absl::Status Check(const TeacherRequest& request, const TeacherInfo& info) const = 0;
  // Begins an attempt. Calls `done` exactly once, on any thread, within about `timeout`, also after
  // CancelAll. `request` and `info` must live until then. Only tests may call `done` inside of
  // Start: the client starts its next request from `done`, so the stack would grow.
  virtual void Start(size_t endpoint, const TeacherRequest& request, const TeacherInfo& info,
                     absl::Duration timeout, std::function<void(Result)> done) = 0;
  // Makes all attempts end soon: those in flight and those that are started later.
  virtual void CancelAll() = 0;
  // Asks every endpoint for its TeacherInfo at the same time. Blocks until all have answered, at
  // most about `timeout`. The answers are in the order of the endpoints.
  virtual std::vector<absl::StatusOr<TeacherInfo>> AskAll(absl::Duration timeout) = 0;
};

}  // namespace taopd
