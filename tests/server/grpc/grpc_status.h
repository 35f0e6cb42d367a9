// Lets the macros of status_matchers.h take the statuses of gRPC's calls.
#pragma once

#include <grpcpp/support/status.h>

#include "tests/support/status_matchers.h"

namespace taopd::testing {

// The codes of both libraries have the same numbers.
inline absl::Status StatusOf(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace taopd::testing
