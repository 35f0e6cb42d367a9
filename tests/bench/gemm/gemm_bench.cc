// Measures products with packed weights in the shapes of Qwen3-0.6B on one thread, for every
// instruction set of this processor. Compares them with the machine's peak rates and with
// at::linear, whose libraries (oneDNN, MKL) choose the order of a sum by the number of rows.
//
//   gemm_bench                  all instruction sets
//   gemm_bench avx2 avx512      these
//
// Times are the thread's CPU time, the minimum of several runs. The weights are read from memory,
// not from a cache: before each run, as much other memory is read as the caches hold. GB/s counts
// the weights once.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/torch/gemm/packed_weight.h"
#include "tests/bench/gemm/machine_peaks.h"
#include "tests/kernels/cpu/supported_sets.h"

namespace taopd::bench {
namespace {

struct Shape {
  const char* name;
  int64_t num_outputs, num_inputs;
};
constexpr Shape kShapes[] = {{"qkv", 4096, 1024},
                             {"o", 1024, 2048},
                             {"gate_up", 6144, 1024},
                             {"down", 1024, 3072},
                             {"lm_head", 151936, 1024}};
constexpr int64_t kRows[] = {1, 4, 16, 64, 512};
constexpr int64_t kCacheBytes = 64 << 20;

void EmptyCaches() {
  static const at::Tensor other = at::ones({kCacheBytes / 4});
  volatile float sum = other.sum().item<float>();
  static_cast<void>(sum);
}

// Runs `multiply` for half a second, between 2 and 30 times. Returns the shortest time.
double BestSeconds(const std::function<void()>& multiply) {
  double best_s = 1e9, spent_s = 0;
  for (int i = 0; i < 30 && (i < 2 || spent_s < 0.5); ++i) {
    EmptyCaches();
    const double start_s = ThreadSeconds();
    multiply();
    const double run_s = ThreadSeconds() - start_s;
    best_s = std::min(best_s, run_s);
    spent_s += run_s;
  }
  return best_s;
}

// Prints one line with the rates of `multiply` for each number of rows.
void PrintLine(const Shape& shape, const at::Tensor& weight, const char* name,
               const std::function<void(const at::Tensor& x, const at::Tensor& y)>& multiply) {
  std::printf("%-9s %-8s %-12s", weight.scalar_type() == at::kFloat ? "float32" : "bfloat16",
              shape.name, name);
  for (const int64_t rows : kRows) {
    const at::Tensor x = at::rand({rows, shape.num_inputs}).to(weight.scalar_type());
    const at::Tensor y = at::empty({rows, shape.num_outputs}, x.options());
    const double seconds = BestSeconds([&] { multiply(x, y); });
    const auto products = static_cast<double>(shape.num_outputs * shape.num_inputs * rows);
    std::printf(" | %6.1f %5.1f", 2e-9 * products / seconds,
                1e-9 * static_cast<double>(weight.nbytes()) / seconds);
  }
  std::printf("\n");
  std::fflush(stdout);
}

void PrintShape(const Shape& shape, at::ScalarType dtype,
                const std::vector<const cpu::PackedGemm*>& gemms) {
  const at::Tensor matrix =
      at::rand({shape.num_outputs, shape.num_inputs}, at::kFloat).sub_(0.5).to(dtype);
  const PackedWeight weight({matrix});
  for (const cpu::PackedGemm* gemm : gemms) {
    PrintLine(shape, matrix, testing::NameOf(gemm),
              [&](const at::Tensor& x, const at::Tensor& y) { weight.MultiplyInto(x, y, *gemm); });
  }
  PrintLine(shape, matrix, "at::linear",
            [&](const at::Tensor& x, const at::Tensor&) { at::linear(x, matrix); });
}

int Main(int argc, char** argv) {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  std::vector<const cpu::PackedGemm*> gemms;
  for (const cpu::PackedGemm* gemm : testing::SupportedPackedGemms()) {
    const auto named = [&](const char* name) {
      return std::strcmp(name, testing::NameOf(gemm)) == 0;
    };
    if (argc == 1 || std::any_of(argv + 1, argv + argc, named)) gemms.push_back(gemm);
  }
  if (gemms.empty()) {
    std::fprintf(stderr, "gemm_bench: %s is not an instruction set of this processor\n", argv[1]);
    return 2;
  }
  const MachinePeaks peaks = PeaksOfThreads(1);
  std::printf(
      "peak of one thread: avx2 fma %.1f, avx512 fma %.1f, bfloat16 pairs %.1f, "
      "tiles %.1f GFLOP/s; ",
      peaks.avx2_gflops, peaks.avx512_gflops, peaks.pair_gflops, peaks.tile_gflops);
  std::printf("read %.1f GB/s\n", peaks.read_gb_per_s);
  std::printf("%-31s", "GFLOP/s and GB/s by rows");
  for (const int64_t rows : kRows) std::printf(" | M = %-8ld", static_cast<long>(rows));
  std::printf("\n");
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    for (const Shape& shape : kShapes) PrintShape(shape, dtype, gemms);
  }
  return 0;
}

}  // namespace
}  // namespace taopd::bench

int main(int argc, char** argv) { return taopd::bench::Main(argc, argv); }
