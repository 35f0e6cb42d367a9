// The outermost function of a program: no exception ends it without a message and an exit code.
#pragma once

#include <functional>

namespace taopd {

// Runs `main` and returns its result. An exception that leaves it becomes a line on stderr and an
// exit code: 71 if memory ran out, otherwise 70. An exception on another thread that is not caught
// ends the process in the same way, without destructors. `program` is the name before the message,
// and must be a literal. Only main may call it, before any threads start: it sets std::terminate's
// handler.
int RunMain(const char* program, const std::function<int()>& main);

// Flushes the standard streams and ends the process without destroying static objects, which
// threads of libraries may still use. Destroying LibTorch's alone takes a twentieth of a second.
// AddressSanitizer reports leaks before that.
[[noreturn]] void LeaveProcess(int exit_code);

}  // namespace taopd
