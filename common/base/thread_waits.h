// How threads wait for each other: what a process sets once, at its start.
#pragma once

namespace taopd {

// Replaces the process by the same program with GOMP_SPINCOUNT=1000 in its environment, so that a
// thread that waits sleeps after some 10 microseconds; with libgomp's default it spins for
// milliseconds on a core that another thread or program may need. To be called by main before it
// has opened files or started threads: libgomp reads the variable before main, and has no call to
// set it (manual of GNU libgomp, "Environment Variables"). Returns, having changed nothing, if
// GOMP_SPINCOUNT or OMP_WAIT_POLICY is set already, which is so after the replacement and in child
// processes, or if the program cannot be started again. `argv` is main's.
void RestartWithShortThreadWaits(char** argv);

// Ends Abseil's search for cycles of locks, in this process and for good. Debian's Abseil is built
// with it: each lock of a mutex, gRPC's included, then takes a lock that all threads share, and an
// order of locks that might once wait for itself ends the process. A build without NDEBUG keeps it.
void StopLookingForLockCycles();

}  // namespace taopd
