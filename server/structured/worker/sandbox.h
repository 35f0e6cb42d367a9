// Removes every right of the process that compiling and matching grammars does not need. An
// attacker who takes over the process through a grammar gets no files, no network, no processes and
// no user.
#pragma once

#include <cstdint>
#include <string>

namespace taopd {

// Closes all descriptors above `last_fd`, ignores the signals that a terminal or a supervisor sends
// to the whole group, and makes the process the first to be killed when the system runs out of
// memory. Drops all capabilities. If the process runs as root, it becomes the user nobody, unless
// the system refuses that. REQUIRES: the process has one thread.
void DropPrivileges(int last_fd);

// Points the standard descriptors at /dev/null. Limits the address space to its current size plus
// memory_bytes, and forbids new descriptors, core dumps, files and processes. With seccomp, all
// threads may make only the system calls that reading, writing, waiting, timing and memory need;
// others return EPERM, and no memory can be made executable. Returns what holds now, for the log,
// such as "uid 65534, seccomp"; each step that the system refused is named, as in ", memory is not
// limited".
std::string EnterSandbox(int64_t memory_bytes);

}  // namespace taopd
