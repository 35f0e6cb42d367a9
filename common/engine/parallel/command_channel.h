// Messages between rank 0 of a tensor parallel model and one other rank, over one end of a pair of
// connected sockets. Rank 0 waits for work of its own; the others wait here, for any time, and
// notice at once when rank 0 is gone. No LibTorch.
//
// Threads: one thread sends and one receives.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace taopd {

class CommandChannel {
 public:
  // Two ends: what one sends, the other receives. The second is inherited by processes that are
  // started.
  static absl::StatusOr<std::pair<int, int>> MakePair();

  explicit CommandChannel(int fd) : fd_(fd) {}

  // Blocks while the other side does not read. UNAVAILABLE: it is gone.
  absl::Status Send(const std::string& message);
  // Blocks until there is a message. nullopt: the other side has closed its end.
  absl::StatusOr<std::optional<std::string>> Receive();

 private:
  const FileDescriptor fd_;
};

}  // namespace taopd
