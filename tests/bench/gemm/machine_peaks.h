// Measures the peak rates of one thread of this machine and of several threads together.
#pragma once

#include <algorithm>

namespace taopd::bench {

// Returns the CPU time of the calling thread in seconds. Unlike wall-clock time, it does not
// include the time that other programs take.
double ThreadSeconds();

// The peak rates of `num_threads` threads together: of register-only loops of multiplications and
// additions, 0 if the instruction is missing, and of reading memory that is in no cache. Several
// threads are measured in wall-clock time, because they share the memory and may share a core; one
// thread in CPU time.
struct MachinePeaks {
  double avx2_gflops = 0;    // float32
  double avx512_gflops = 0;  // float32
  double pair_gflops = 0;    // bfloat16: VDPBF16PS on 512-bit registers
  double tile_gflops = 0;    // bfloat16: TDPBF16PS on whole tiles
  double read_gb_per_s = 0;
  double float32_gflops() const { return std::max(avx2_gflops, avx512_gflops); }
  double bfloat16_gflops() const { return std::max({float32_gflops(), pair_gflops, tile_gflops}); }
};
MachinePeaks PeaksOfThreads(int num_threads);

}  // namespace taopd::bench
