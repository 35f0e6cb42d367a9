// Process-wide settings of how threads wait for each other, made once at the start.
#pragma once

namespace taopd {

// Replaces the process by the same program with GOMP_SPINCOUNT=1000 in its environment, so that a
// waiting thread sleeps after some 10 microseconds. With libgomp's default it spins for
// milliseconds on a core that another thread or program may need. libgomp reads the variable when
// it is loaded, and has no call to set it (manual of GNU libgomp, "Environment Variables").
//
// Returns without any change if GOMP_SPINCOUNT or OMP_WAIT_POLICY is already set, as it is after
// the replacement and in child processes, or if the program cannot be started again.
//
// A program lets the dynamic linker call this before the constructors of its libraries, because
// those of LibTorch take a quarter of a second and would otherwise run twice. Beside main it has
//   [[gnu::used, gnu::section(".preinit_array")]] auto* const restart_at_load =
//       taopd::RestartWithShortThreadWaits;
void RestartWithShortThreadWaits(int argc, char** argv, char** environment);

// Permanently ends Abseil's search for cycles of locks in this process. Debian's Abseil is built
// with it: each lock of a mutex, including gRPC's, then takes a lock that all threads share, and a
// lock order that might deadlock ends the process. A build without NDEBUG keeps the search.
void StopLookingForLockCycles();

}  // namespace taopd
