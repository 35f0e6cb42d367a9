// Loops on several threads, for the project's own kernels. Each thread that computes has its own
// workers, as with OpenMP, which ATen's operations use; the difference is how threads wait.
//
// A training step or a decoding step is hundreds of loops of ten to a few hundred microseconds, and
// waking a sleeping thread takes as long as a short loop. A spinning thread takes the processor
// from another program, such as a teacher on the same machine. A thread that waits here therefore
// first offers its processor to others again and again (sched_yield), keeps it if no other thread
// wants it, and sleeps after kWaitAwake. libgomp offers no such choice: its threads either spin or
// sleep.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "taopd/base/parallel_for.h"

namespace taopd {

// The time that a thread waits for work, or for the other threads to finish, before it sleeps.
inline constexpr std::chrono::microseconds kWaitAwake{200};

// Returns how many threads a loop has here: at::get_num_threads(), or one inside another loop.
int64_t NumAvailableThreads();

// A ParallelFor: calls body(begin, end) for disjoint ranges of about the same size that together
// are [0, num), and returns when all calls have returned. At most NumAvailableThreads() calls run
// at the same time. There are somewhat more ranges than threads, and threads take them in ascending
// order as they become free. In a body, ATen's operations have one thread. If bodies throw, one of
// their exceptions is thrown here.
//
// Thread-safe: each thread has its own workers, which start with its first loop and end with it.
void ParallelLoop(int64_t num, int64_t grain,
                  const std::function<void(int64_t begin, int64_t end)>& body);

// ParallelLoop, for kernels that take a ParallelFor.
const ParallelFor& TorchParallelFor();

}  // namespace taopd
