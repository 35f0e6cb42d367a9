// What one thread of this machine, and several at once, can do at most, measured.
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

// What `num_threads` threads reach together, by the clock on the wall: threads may share a core and
// do share the memory. One thread is measured by its CPU time. The bfloat16 rate is that of float32
// where the instruction is missing.
struct MachinePeaks {
  double float32_gflops = 0;
  double bfloat16_gflops = 0;
  double read_gb_per_s = 0;
};
MachinePeaks PeaksOfThreads(int num_threads);

}  // namespace taopd::bench
