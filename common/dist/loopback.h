// Where the ranks of one machine meet when one program starts them all. No LibTorch.
#pragma once

#include "common/base/status.h"

namespace taopd {

struct LoopbackListener {
  int fd = -1;  // the caller's; closed when a program is executed
  int port = 0;
};

// Listens at a port of 127.0.0.1 that the system picks. Returns UNAVAILABLE if that fails.
absl::StatusOr<LoopbackListener> ListenOnLoopback();

}  // namespace taopd
