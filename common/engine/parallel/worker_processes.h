// The processes of ranks 1, 2, ... of a tensor parallel model on this machine. They run this same
// program; rank 0 starts them, and they end with it. It does not depend on LibTorch.
//
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/engine/parallel/command_channel.h"

namespace taopd {

class WorkerProcesses {
 public:
  // Starts size - 1 processes (worker.h).
  static absl::StatusOr<std::unique_ptr<WorkerProcesses>> Start(int64_t size);
  // Closes the channels, which tells the processes to end, waits for a while, and then kills the
  // remaining processes.
  ~WorkerProcesses();
  WorkerProcesses(const WorkerProcesses&) = delete;
  WorkerProcesses& operator=(const WorkerProcesses&) = delete;

  // Send a message to one process or to all of them.
  absl::Status Send(int64_t rank, const std::string& message);
  absl::Status SendToAll(const std::string& message);
  // Returns UNAVAILABLE, with the rank and how it ended, if a process has ended. Cheap enough to
  // poll.
  absl::Status Health() const;

 private:
  struct Worker {
    pid_t pid = 0;
    std::unique_ptr<CommandChannel> channel;
  };
  WorkerProcesses() = default;

  std::vector<Worker> workers_;  // ranks 1, 2, ...
};

}  // namespace taopd
