// Runs the ranks of a run on this machine as processes of one program.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace taopd {

struct LaunchOptions {
  std::vector<std::string> command;  // the program and its arguments
  int64_t num_processes = 1;
  // This machine's number, and the number of machines, which all start equally many processes. On
  // several machines the ranks meet at master_addr:master_port; on one, at a port of 127.0.0.1 that
  // the system picks.
  int64_t node_rank = 0;
  int64_t num_nodes = 1;
  std::string master_addr;
  int master_port = 0;
};

// Starts the processes with the variables that rendezvous.h reads and waits for their end. Returns
// the exit code of the first one that failed (128 + the signal if it was killed), that of ranks
// that were stopped, or 0. If one fails, the others learn it from each other and end; those that do
// not are terminated, then killed. If this process is killed, they get SIGTERM. Call it once in a
// process that has one thread.
//
// The first SIGTERM or SIGINT is passed on to all ranks; others within five seconds count as the
// same request (repeated_signals.h). A later one is passed on as well. Ranks that still run after
// two more seconds are killed, and the code is 77 unless all had ended regularly.
absl::StatusOr<int> RunRanks(const LaunchOptions& options);

}  // namespace taopd
