// Carries messages between rank 0 of a tensor parallel model and one other rank, over a pair of
// connected sockets. The other ranks wait here for work without a time limit, and notice
// immediately if rank 0 is gone. This header does not depend on LibTorch.
//
// Threads: one thread sends and one receives.
#pragma once

#include <absl/time/time.h>

#include <optional>
#include <string>
#include <utility>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace taopd {

class CommandChannel {
 public:
  // Returns the two connected ends. Child processes inherit the second one.
  static absl::StatusOr<std::pair<int, int>> MakePair();

  explicit CommandChannel(int fd) : fd_(fd) {}

  // Blocks while the other side does not read. Returns UNAVAILABLE if the other side is gone.
  absl::Status Send(const std::string& message);
  // Blocks until there is a message. Returns nullopt if the other side has closed its end.
  absl::StatusOr<std::optional<std::string>> Receive();
  // Waits until there is a message or the other side has closed its end. Returns false after
  // `timeout`.
  bool Await(absl::Duration timeout);

 private:
  const FileDescriptor fd_;
};

}  // namespace taopd
