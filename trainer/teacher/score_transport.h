// The interface between the retrying client and the network: one attempt to score one sequence at
// one endpoint. Implementations: gRPC (transport/grpc_transport.h), HTTP
// (transport/http_transport.h), and scripted ones in tests.
#pragma once

#include <absl/time/time.h>

#include <cstddef>
#include <functional>
#include <optional>

#include "trainer/teacher/teacher_client.h"

namespace taopd {

class ScoreTransport {
 public:
  struct Result {
    absl::StatusOr<TeacherScores> scores;  // verified by the transport
    // The pause that the endpoint requests. If negative, the request must not be retried.
    std::optional<absl::Duration> pushback;
    int64_t bytes_sent = 0;
    int64_t bytes_received = 0;
  };
  virtual ~ScoreTransport() = default;
  // Returns INVALID_ARGUMENT for a request that this transport can never carry.
  virtual absl::Status Check(const TeacherRequest& request, const TeacherInfo& info) const = 0;
  // Starts an attempt. Calls `done` exactly once, on any thread, within about `timeout`, also after
  // CancelAll. `request` and `info` must live until then. Only tests may call `done` inside Start:
  // the client starts its next request from `done`, so the stack would grow.
  virtual void Start(size_t endpoint, const TeacherRequest& request, const TeacherInfo& info,
                     absl::Duration timeout, std::function<void(Result)> done) = 0;
  // Makes all attempts end soon, including those that are started later.
  virtual void CancelAll() = 0;
  // Queries an endpoint for its TeacherInfo. Blocks until it has answered, but at most about
  // `timeout`. Several threads may call it concurrently.
  virtual absl::StatusOr<TeacherInfo> Ask(size_t endpoint, absl::Duration timeout) = 0;
};

}  // namespace taopd
