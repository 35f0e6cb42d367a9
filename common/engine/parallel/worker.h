// Ranks 1, 2, ... of a tensor parallel model: processes that hold one slice each and execute the
// commands of rank 0 (model_command.h).
#pragma once

namespace taopd {

// The environment variable that makes a process such a rank. Its value is the file descriptor of
// the process's end of a CommandChannel.
inline constexpr char kWorkerFdVariable[] = "TAOPD_TENSOR_PARALLEL_FD";

// Returns whether this process was started as such a rank. Call it before anything else.
bool IsTensorParallelWorker();

// Serves until rank 0 closes the channel. Returns the exit code: 0, or 70 after an error, which is
// logged.
int RunTensorParallelWorker();

}  // namespace taopd
