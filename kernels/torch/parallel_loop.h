// Loops on several threads, for our own kernels. A thread that computes has workers of its own, as with
// OpenMP, which ATen's operations use; what differs is how threads wait.
//
// A training step, or a step of decoding, is hundreds of loops of some ten or hundred microseconds, and
// to wake a thread that sleeps takes as long as a short loop. One that spins takes the processor from
// another program, such as a teacher on the same machine. So a thread that waits here first offers its
// processor to others again and again (sched_yield), and takes it where nobody else wants it; it
// sleeps after kWaitAwake. libgomp does not have that: its threads spin, or sleep.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "taopd/base/parallel_for.h"

namespace taopd {

// How long a thread waits for work, or for the others' end of it, before it sleeps.
inline constexpr std::chrono::microseconds kWaitAwake{200};

// How many threads a loop has here: at::get_num_threads(), or one inside of another loop.
int64_t ThreadsAtHand();

// A ParallelFor: calls body(begin, end) for disjoint ranges of about the same size that together are
// [0, num), and returns when all calls have returned. At most ThreadsAtHand() calls run at the same
// time; there are some more ranges, which threads take in ascending order as they get there. In a body,
// ATen's operations have one thread. If bodies throw, the exception of one of them is thrown here.
//
// Thread-safe: every thread has workers of its own, which start with its first loop and end with it.
void ParallelLoop(int64_t num, int64_t grain,
                  const std::function<void(int64_t begin, int64_t end)>& body);

// ParallelLoop, for kernels that take a ParallelFor.
const ParallelFor& TorchParallelFor();

}  // namespace taopd
