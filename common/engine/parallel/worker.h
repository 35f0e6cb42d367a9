// Ranks 1, 2, ... of a tensor parallel model: processes that hold a slice each and do what rank 0
// tells them (model_command.h).
#pragma once

namespace taopd {

// The environment variable that makes a process such a rank: the number of its end of a
// CommandChannel.
inline constexpr char kWorkerFdVariable[] = "TAOPD_TENSOR_PARALLEL_FD";

// Whether this process was started as one. Ask before anything else is done.
bool IsTensorParallelWorker();

// Serves until rank 0 closes the channel. Returns the exit code: 0 then, and 70 after an error,
// which is logged.
int RunTensorParallelWorker();

}  // namespace taopd
