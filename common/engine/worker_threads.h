// The worker threads that OpenMP keeps for every thread that computes.
#pragma once

namespace taopd {

// Ends the workers that OpenMP keeps for the calling thread; its next parallel loop starts new
// ones, in about 50 microseconds. A thread that leaves the computing to another one for a while
// calls it: OpenMP counts idle workers as busy, and where it counts more than there are
// processors, the other thread's workers sleep after each loop and have to be woken for the next.
// In decoding, which has hundreds of short loops a token, that took an eighth of the time.
//
// Must not be called inside of a parallel loop.
void LetGoOfWorkerThreads();

}  // namespace taopd
