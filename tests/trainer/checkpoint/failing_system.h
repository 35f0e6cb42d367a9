// The system calls of a save, counted, and one of them made to fail or to end the process: this
// test program's own write, fsync, rename, mkdir and open for writing stand before the C library's.
#pragma once

#include <string>

namespace taopd::testing {

enum class Fault { kNone, kKillBefore, kKillAfter, kFail };

// From now on counts the calls below `dir`; call number `index` (from 0) meets the fault. kFail
// gives `error_number`.
void ArmFault(Fault fault, int index, int error_number = 0);
// Calls counted since.
int NumSystemCalls();

}  // namespace taopd::testing
