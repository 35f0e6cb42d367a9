// taopd/attention/paged_attention.h on the CPU. The functions return when the work is done. They
// get their threads from the ParallelFor, which they call once. Any thread may call them; calls
// with different outputs may overlap.
//
// Each thread keeps scratch memory between calls: a few hundred kilobytes for each thread that
// computes. The calling thread also keeps the list of tasks and, when few sequences with long
// contexts decode, one partial result per partition.
#pragma once

#include "kernels/cpu/isa/isa.h"
#include "taopd/attention/paged_attention.h"
#include "taopd/base/parallel_for.h"

namespace taopd::cpu {

// Only tests pass `set`. REQUIRES: IsSupported(set).
void AppendKeysAndValues(const AppendKeysValues& problem, const ParallelFor& parallel_for,
                         InstructionSet set = WidestInstructionSet());
void AttendToPages(const PagedAttention& problem, const ParallelFor& parallel_for,
                   InstructionSet set = WidestInstructionSet());

}  // namespace taopd::cpu
