// Takes from the process what following grammars does not need, so that whoever takes it over
// through a form gets nothing: no files, no network, no processes, no user of the system's.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace taopd {

// Closes all descriptors above `last_fd`, sends the standard ones to /dev/null, ignores the signals
// that a terminal or a supervisor sends to the whole group, and makes the process the first to end
// when the system runs out of memory. If it runs as root, it becomes nobody and loses all
// capabilities; a system may refuse that, and does so to everybody but root. REQUIRES: there is one
// thread.
void DropPrivileges(int last_fd);

// Limits the address space to what it is now plus memory_bytes, forbids new descriptors, core dumps
// and larger files, and lets all threads make only those system calls that reading, writing,
// waiting, timing and memory need (seccomp); every other one returns EPERM. Executable memory
// cannot be made. Returns what holds now, for the log: "uid 65534, seccomp".
std::string EnterSandbox(int64_t memory_bytes);

}  // namespace taopd
