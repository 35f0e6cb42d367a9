// The processes of ranks 1, 2, ... of a tensor parallel model on this machine: they hold one slice
// each and execute the commands of rank 0 (model_command.h). They run this same program; rank 0
// starts them, and they end with it. This header does not depend on LibTorch.
#pragma once

#include <absl/time/time.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/engine/parallel/command_channel.h"

namespace taopd {

// The environment variable that makes a process such a rank. Its value is the file descriptor of
// the process's end of a CommandChannel.
inline constexpr char kWorkerFdVariable[] = "TAOPD_TENSOR_PARALLEL_FD";

// Returns whether this process was started as such a rank. Call it before anything else.
bool IsTensorParallelWorker();

// Serves until rank 0 closes the channel. Returns the exit code: 0, or 70 after an error, which is
// logged.
int RunTensorParallelWorker();

// Rank 0's view of these processes. One thread sends; any thread may call Health.
class WorkerProcesses {
 public:
  // Starts size - 1 processes.
  static absl::StatusOr<std::unique_ptr<WorkerProcesses>> Start(int64_t size);
  // Closes the channels, which tells the processes to end, waits for a while, and then kills the
  // remaining processes.
  ~WorkerProcesses();
  WorkerProcesses(const WorkerProcesses&) = delete;
  WorkerProcesses& operator=(const WorkerProcesses&) = delete;

  // Send a message to one process or to all of them.
  absl::Status Send(int64_t rank, const std::string& message);
  absl::Status SendToAll(const std::string& message);
  // Receives one message from each process: empty, or the reason why it cannot join the group.
  // Returns FAILED_PRECONDITION with the rank and this reason, and UNAVAILABLE if a process ends
  // first or has sent nothing after `timeout`.
  absl::Status AwaitReady(absl::Duration timeout);
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
