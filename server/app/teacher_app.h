// The life of taopd-teacher: listen, load, serve, drain. The model comes from a function, so that
// this part knows no LibTorch and tests can run it with another engine.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>

#include "common/base/status.h"
#include "server/options/teacher_options.h"
#include "server/serving/serving_state.h"

namespace taopd {

using ModelLoader = std::function<absl::StatusOr<std::shared_ptr<const ServedModel>>()>;

// Runs until SIGTERM or SIGINT and returns the exit code (teacher_options.h). Both listeners are
// bound, and named in one line on `out`, before `load` runs on a thread of its own. A first signal
// drains: health fails, new work is refused, accepted work has options.shutdown_timeout to finish.
// A second signal ends the process at once.
//
// Blocks SIGTERM and SIGINT in the calling thread, before any thread starts. Call it from the main
// thread of a process that has no other threads. After a signal that came while loading, the
// loading thread still runs when this returns: leave by LeaveProcess.
int RunTeacher(const TeacherOptions& options, const ModelLoader& load, std::ostream& out);

// Flushes the standard streams and ends the process without destroying static objects, which
// threads of libraries may still use.
[[noreturn]] void LeaveProcess(int exit_code);

}  // namespace taopd
