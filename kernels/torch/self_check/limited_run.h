// Runs work that may never return: a kernel that hangs holds its thread, and nothing can interrupt
// it.
#pragma once

#include <functional>

namespace taopd {

// Runs `work` on a thread of its own and returns true when it has returned, or false after limit_s
// seconds. The thread then runs on by itself, so `work` must own what it uses. Exceptions of `work`
// are thrown here.
bool RunWithLimit(double limit_s, std::function<void()> work);

}  // namespace taopd
