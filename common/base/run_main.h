// The outermost function of a program: no exception ends it without a message and an exit code.
#pragma once

#include <functional>

namespace taopd {

// Runs `main` and returns what it returns. An exception that leaves it becomes a line on stderr and
// an exit code: 71 if memory ran out, else 70. One that nothing catches on another thread ends the
// process in the same way, without destructors. `program` is the name in front of the message, and
// must be a literal. For main only, before any threads start: it sets std::terminate's handler.
int RunMain(const char* program, const std::function<int()>& main);

}  // namespace taopd
