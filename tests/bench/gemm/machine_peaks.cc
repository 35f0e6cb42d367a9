#include "tests/bench/gemm/machine_peaks.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/cpu/isa/isa.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace taopd::bench {
namespace {

constexpr int kRepetitions = 7;
constexpr int64_t kSteps = 1 << 20;
constexpr int kChains = 12;  // more than the instructions' latency, fewer than the registers

double WallSeconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// Returns the highest rate of work over a few runs in which each thread runs f(its index).
double BestRate(int num_threads, double work_of_thread, const std::function<void(int)>& f) {
  const auto seconds = num_threads == 1 ? ThreadSeconds : WallSeconds;
  double best_s = 1e9;
  for (int i = 0; i < kRepetitions; ++i) {
    const double start = seconds();
    {
      std::vector<std::jthread> others;
      for (int thread = 1; thread < num_threads; ++thread) others.emplace_back(f, thread);
      f(0);
    }
    best_s = std::min(best_s, seconds() - start);
  }
  return num_threads * work_of_thread / best_s * 1e-9;
}

#if defined(__x86_64__)

// The empty assembly keeps the compiler from combining steps, and the different starts keep it from
// combining chains.

__attribute__((target("avx2,fma"))) void Avx2Steps() {
  __m256 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  __m256 x = _mm256_set1_ps(1e-3f);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(x, x, sum);
    asm volatile("" : "+x"(x));
  }
  for (__m256& sum : sums) asm volatile("" ::"x"(sum));
}

__attribute__((target("avx512f"))) void Avx512Steps() {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  __m512 x = _mm512_set1_ps(1e-3f);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(x, x, sum);
    asm volatile("" : "+v"(x));
  }
  for (__m512& sum : sums) asm volatile("" ::"v"(sum));
}

__attribute__((target("avx512f,avx512bf16"))) void PairSteps() {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  __m512i x = _mm512_set1_epi32(0x3c003c00);
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto pairs = reinterpret_cast<__m512bh>(x);
#pragma GCC unroll 12
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, pairs, pairs);
    asm volatile("" : "+v"(x));
  }
  for (__m512& sum : sums) asm volatile("" ::"v"(sum));
}

__attribute__((target("amx-tile,amx-bf16"))) void TileSteps() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shapes;
  asm volatile("" : : "m"(shapes));  // the intrinsic names only the first bytes as read
  _tile_loadconfig(&shapes);
  for (int64_t step = 0; step < kSteps; step += 16) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}
constexpr double kFlopsOfTileStep = 4.0 / 16 * 2 * 16 * 16 * 32;

// REQUIRES: num is a multiple of 32.
__attribute__((target("avx2"))) uint64_t Avx2Sum(const uint64_t* from, size_t num) {
  __m256i sums[8];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (size_t i = 0; i < num; i += 32) {
#pragma GCC unroll 8
    for (size_t j = 0; j < 8; ++j) {
      const auto* words = reinterpret_cast<const __m256i*>(from + i + 4 * j);
      sums[j] = _mm256_add_epi64(sums[j], _mm256_loadu_si256(words));
    }
  }
  for (int j = 1; j < 8; ++j) sums[0] = _mm256_add_epi64(sums[0], sums[j]);
  return static_cast<uint64_t>(_mm256_extract_epi64(sums[0], 0));
}

#endif

// REQUIRES: num is a multiple of 32.
void ReadAll(const uint64_t* from, size_t num) {
  uint64_t total = 0;
#if defined(__x86_64__)
  if (cpu::IsSupported(cpu::InstructionSet::kAvx2)) {
    total = Avx2Sum(from, num);
    num = 0;
  }
#endif
  for (size_t i = 0; i < num; ++i) total += from[i];
  asm volatile("" ::"r"(total));
}

}  // namespace

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

MachinePeaks PeaksOfThreads(int num_threads) {
  MachinePeaks peaks;
#if defined(__x86_64__)
  const auto gflops = [&](cpu::InstructionSet needed, void (*steps)(), double flops_of_thread) {
    if (!cpu::IsSupported(needed)) return 0.0;
    return BestRate(num_threads, flops_of_thread, [&](int) { steps(); });
  };
  constexpr double kInstructions = static_cast<double>(kChains * kSteps);
  peaks.avx2_gflops = gflops(cpu::InstructionSet::kAvx2, Avx2Steps, 16 * kInstructions);
  peaks.avx512_gflops = gflops(cpu::InstructionSet::kAvx512, Avx512Steps, 32 * kInstructions);
  peaks.pair_gflops = gflops(cpu::InstructionSet::kAvx512Bf16, PairSteps, 64 * kInstructions);
  peaks.tile_gflops = gflops(cpu::InstructionSet::kAmxBf16, TileSteps, kFlopsOfTileStep * kSteps);
#endif
  const size_t num_words = size_t{num_threads == 1 ? 32u : 128u} << 20;  // 256 MiB or 1 GiB in all
  const size_t words_of_thread = num_words / static_cast<size_t>(num_threads) / 32 * 32;
  const std::vector<uint64_t> memory(num_words, 1);
  peaks.read_gb_per_s = BestRate(
      num_threads, static_cast<double>(words_of_thread * sizeof(uint64_t)), [&](int thread) {
        ReadAll(memory.data() + static_cast<size_t>(thread) * words_of_thread, words_of_thread);
      });
  return peaks;
}

}  // namespace taopd::bench
