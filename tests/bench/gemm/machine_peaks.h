// What one thread of this machine can do at most, measured.
#pragma once

namespace taopd::bench {

// CPU time of the calling thread in seconds: unlike the clock on the wall, it does not count what
// other programs take.
double ThreadSeconds();

// Multiplications and additions per second, in GFLOP/s, of register-only loops; 0 where the
// instruction is missing.
double PeakAvx2FmaGflops();
double PeakAvx512FmaGflops();
double PeakPairGflops();  // VDPBF16PS on 512-bit registers

// GB/s at which one thread reads memory that no cache holds.
double ReadGigabytesPerSecond();

}  // namespace taopd::bench
