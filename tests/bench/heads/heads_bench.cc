// Compares the fused heads with the obvious code in ATen operations and autograd, on the same
// inputs in the same process. One iteration is one step on all rows: forward and backward for the
// student, top-k for the teacher.
//
//   heads_bench --benchmark_filter=Student
//
// Arguments: rows N, hidden H, vocabulary V, k, bf16. The counter GFLOP/s counts 6 N H V for the
// student (three GEMMs) and 2 N H V for the teacher, whatever the method computes.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <limits>

#include "kernels/torch/head/scoring_head.h"
#include "kernels/torch/head/student_head.h"

namespace taopd {
namespace {

struct Inputs {
  at::Tensor hidden, lm_head;
  HeadTargets targets;
  double gemm_flops = 0;  // of one GEMM
};

Inputs MakeInputs(const benchmark::State& state) {
  const int64_t num_rows = state.range(0);
  const int64_t hidden_size = state.range(1);
  const int64_t vocabulary_size = state.range(2);
  const int64_t k = state.range(3);
  const at::ScalarType dtype = state.range(4) != 0 ? at::kBFloat16 : at::kFloat;
  at::manual_seed(1);
  Inputs inputs;
  inputs.hidden = at::randn({num_rows, hidden_size}).to(dtype);
  inputs.lm_head = (at::randn({vocabulary_size, hidden_size}) * 0.05).to(dtype);
  HeadTargets& targets = inputs.targets;
  targets.support_ids_Nk =
      std::get<1>(at::rand({num_rows, vocabulary_size}).topk(k, 1)).to(at::kInt);
  targets.teacher_log_probs_Nk = at::log_softmax(at::randn({num_rows, k}), 1) - 0.1;
  targets.teacher_log_tail_N = at::log1p(-targets.teacher_log_probs_Nk.exp().sum(1));
  targets.sampled_ids_N = at::randint(0, vocabulary_size, {num_rows}, at::kInt);
  targets.row_weights_N = at::full({num_rows}, 1.0 / static_cast<double>(num_rows));
  inputs.gemm_flops = 2.0 * num_rows * hidden_size * vocabulary_size;
  return inputs;
}

void CountFlops(benchmark::State& state, double flops) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void StudentFused(benchmark::State& state) {
  const Inputs inputs = MakeInputs(state);
  HeadOptions options;
  options.objective = FindObjective("ta_opd").value();
  at::Tensor d_lm_head = at::zeros(inputs.lm_head.sizes());
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        StudentHead(inputs.hidden, inputs.lm_head, inputs.targets, options, d_lm_head));
  }
  CountFlops(state, 3 * inputs.gemm_flops);
}

// The paper's listing: log-softmax over the vocabulary in float32, gather, log1mexp and autograd.
void StudentEager(benchmark::State& state) {
  const Inputs inputs = MakeInputs(state);
  const at::Tensor hidden = inputs.hidden.requires_grad_(true);
  const at::Tensor lm_head = inputs.lm_head.requires_grad_(true);
  const at::Tensor ids = inputs.targets.support_ids_Nk.to(at::kLong);
  const auto log_tail = [](const at::Tensor& log_p) {
    return at::log1p(-at::logsumexp(log_p, 1, true).clamp_max(-1e-6).exp());
  };
  const at::Tensor log_q = at::cat(
      {inputs.targets.teacher_log_probs_Nk, log_tail(inputs.targets.teacher_log_probs_Nk)}, 1);
  for (auto _ : state) {
    const at::Tensor support =
        at::log_softmax(at::mm(hidden, lm_head.t()).to(at::kFloat), 1).gather(1, ids);
    const at::Tensor log_p = at::cat({support, log_tail(support)}, 1);
    ((log_p.exp() * (log_p - log_q)).sum(1) * inputs.targets.row_weights_N).sum().backward();
    hidden.mutable_grad().reset();
    lm_head.mutable_grad().reset();
  }
  CountFlops(state, 3 * inputs.gemm_flops);
}

void TeacherFused(benchmark::State& state) {
  const Inputs inputs = MakeInputs(state);
  ScoringOptions options;
  options.top_k = static_cast<int32_t>(state.range(3));
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        ScoreRowsOfHead(inputs.hidden, inputs.lm_head, inputs.targets.sampled_ids_N, {}, options));
  }
  CountFlops(state, inputs.gemm_flops);
}

void TeacherEager(benchmark::State& state) {
  const Inputs inputs = MakeInputs(state);
  const at::Tensor sampled = inputs.targets.sampled_ids_N.to(at::kLong).unsqueeze(1);
  for (auto _ : state) {
    const at::Tensor log_p =
        at::log_softmax(at::mm(inputs.hidden, inputs.lm_head.t()).to(at::kFloat), 1);
    benchmark::DoNotOptimize(log_p.topk(state.range(3), 1));
    benchmark::DoNotOptimize(log_p.gather(1, sampled));
  }
  CountFlops(state, inputs.gemm_flops);
}

void Shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"N", "H", "V", "k", "bf16"})->Unit(benchmark::kMillisecond)->UseRealTime();
  for (int64_t bf16 : {0, 1}) {
    bench->Args({1024, 256, 4096, 16, bf16});
    bench->Args({256, 1024, 151936, 16, bf16});
  }
}
BENCHMARK(StudentFused)->Apply(Shapes);
BENCHMARK(StudentEager)->Apply(Shapes);
BENCHMARK(TeacherFused)->Apply(Shapes);
BENCHMARK(TeacherEager)->Apply(Shapes);

}  // namespace
}  // namespace taopd
