// The address at which the ranks of one machine meet when one program starts them all. Does not use
// LibTorch.
#pragma once

#include "common/base/status.h"

namespace taopd {

struct LoopbackListener {
  int fd = -1;  // owned by the caller; closed when a program is executed
  int port = 0;
};

// Listens on a port of 127.0.0.1 that the system picks. Returns UNAVAILABLE if that fails.
absl::StatusOr<LoopbackListener> ListenOnLoopback();

}  // namespace taopd
