// taopd/attention/paged_attention.h on the CPU. The functions return when the work is done; they
// take their threads from the ParallelFor, which they call once. Any thread may call them; calls
// with different outputs may overlap.
//
// Scratch memory is kept between calls, one piece a thread: a few hundred kilobytes for each thread
// that computes, and for the calling thread the list of tasks and, when few sequences with long
// contexts decode, one partial result a partition.
#pragma once

#include "kernels/cpu/attention/attention_loops.h"
#include "taopd/attention/paged_attention.h"
#include "taopd/base/parallel_for.h"

namespace taopd::cpu {

void Run(const AppendKeysValues& problem, const ParallelFor& parallel_for);
void Run(const PagedAttention& problem, const ParallelFor& parallel_for);

// With the loops of a chosen instruction set, for tests.
void Run(const AppendKeysValues& problem, const ParallelFor& parallel_for,
         const AttentionLoops& loops);
void Run(const PagedAttention& problem, const ParallelFor& parallel_for,
         const AttentionLoops& loops);

}  // namespace taopd::cpu
