// taopd/attention/paged_attention.h on the CPU. The functions return when the work is done. They
// get their threads from the ParallelFor, which they call once. Any thread may call them; calls
// with different outputs may overlap.
//
// Each thread keeps scratch memory between calls: a few hundred kilobytes for each thread that
// computes. The calling thread also keeps the list of tasks and, when few sequences with long
// contexts decode, one partial result per partition.
#pragma once

#include "kernels/cpu/attention/attention_loops.h"
#include "taopd/attention/paged_attention.h"
#include "taopd/base/parallel_for.h"

namespace taopd::cpu {

void Run(const AppendKeysValues& problem, const ParallelFor& parallel_for);
void Run(const PagedAttention& problem, const ParallelFor& parallel_for);

// Variants with the loops of a chosen instruction set, for tests.
void Run(const AppendKeysValues& problem, const ParallelFor& parallel_for,
         const AttentionLoops& loops);
void Run(const PagedAttention& problem, const ParallelFor& parallel_for,
         const AttentionLoops& loops);

}  // namespace taopd::cpu
