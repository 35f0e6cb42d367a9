// Runs taopd-teacher: it listens, loads, serves and drains. A function provides the model, so that
// this part does not depend on LibTorch and tests can run it with another engine.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>

#include "common/base/status.h"
#include "server/options/teacher_options.h"
#include "server/serving/serving_state.h"

namespace taopd {

using ModelLoader = std::function<absl::StatusOr<std::shared_ptr<ServedModel>>()>;

// Runs until SIGTERM or SIGINT and returns the exit code. Both listeners are bound, and named in
// one line on `out`, before `load` runs on its own thread. The first signal makes the server not
// ready. It serves for options.drain_delay seconds more and then drains: health fails, new work is
// refused, and accepted work has options.shutdown_timeout to finish. If the process has not ended
// 10 s after that, because a step of the engine never returns, it is ended with kExitInternal
// (EndWatch). Further signals within five seconds of the first have no effect; a later one ends it
// immediately (repeated_signals.h).
//
// SIGHUP reloads the file of keys and the certificates and reopens the access log, where there are
// any; otherwise it ends the program.
//
// Call it from the main thread of a process that has no other threads: it blocks SIGTERM, SIGINT
// and, where there is something to reload, SIGHUP in the calling thread before it starts any. If a
// signal comes while the model is loading, the loading thread still runs when this function
// returns; end the process with LeaveProcess (common/base/run_main.h).
int RunTeacher(const TeacherOptions& options, const ModelLoader& load, std::ostream& out);

// Returns the exit code of a program that cannot serve or plan a model because of this error.
int ExitCodeOfLoad(const absl::Status& status);

}  // namespace taopd
