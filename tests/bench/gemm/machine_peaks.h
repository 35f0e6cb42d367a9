// Measures the peak rates of one thread of this machine and of several threads together.
#pragma once

namespace taopd::bench {

// Returns the CPU time of the calling thread in seconds. Unlike wall-clock time, it does not
// include the time that other programs take.
double ThreadSeconds();

// Return the multiplications and additions per second of register-only loops in GFLOP/s, or 0 if
// the instruction is missing.
double PeakAvx2FmaGflops();
double PeakAvx512FmaGflops();
double PeakPairGflops();  // VDPBF16PS on 512-bit registers
double PeakTileGflops();  // TDPBF16PS on whole tiles

// Returns the rate in GB/s at which one thread reads memory that is in no cache.
double ReadGigabytesPerSecond();

// The peak rates of `num_threads` threads together. Several threads are measured in wall-clock
// time, because they share the memory and may share a core; one thread in CPU time. Without the
// instruction, the bfloat16 rate is that of float32.
struct MachinePeaks {
  double float32_gflops = 0;
  double bfloat16_gflops = 0;
  double read_gb_per_s = 0;
};
MachinePeaks PeaksOfThreads(int num_threads);

}  // namespace taopd::bench
