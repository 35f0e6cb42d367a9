// Runs this project's side of compare.py, with the protocol of peers.py.
//
//   head_call student|teacher DIR N H V K DTYPE THREADS REPEATS WORKSPACE_MIB
//
// prints one line of JSON. A workspace of 0 stands for one with which the total memory is less than
// an eighth of PyTorch's in eager mode, which is about three tensors [N, V] of DTYPE.
#include <ATen/ATen.h>
#include <ATen/MapAllocator.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/cpu/isa/isa.h"
#include "kernels/torch/gemm/head_gemm_cpu.h"
#include "kernels/torch/gemm/packed_weight.h"
#include "kernels/torch/head/scoring_head.h"
#include "kernels/torch/head/student_head.h"
#include "tests/bench/process.h"

namespace taopd {
namespace {

// Returns a copy, so that the process owns the pages before anything is measured.
at::Tensor Read(const std::string& path, std::vector<int64_t> shape, at::ScalarType dtype) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return at::from_file(path, /*shared=*/false, count, at::TensorOptions().dtype(dtype))
      .reshape(shape)
      .clone();
}

// Says how the head's products of this type are computed on this processor.
std::string MethodOf(at::ScalarType dtype) {
  const bool is_pairs = dtype == at::kBFloat16;
  if (is_pairs && cpu::BestPackedGemm().multiply_pairs != nullptr) {
    return std::string("bfloat16 pairs, ") + cpu::NameOf(cpu::WidestInstructionSet());
  }
  return std::string(is_pairs ? "bfloat16 widened to " : "") + "float32 panels, " +
         cpu::NameOf(cpu::WidestInstructionSet());
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// GFLOP/s of the three products by float32 at::mm, on a part of the vocabulary.
double MatmulRate(int64_t num_rows, int64_t hidden_size, int64_t vocab_size) {
  const int64_t v = std::min<int64_t>(vocab_size, 16384);
  const at::Tensor hidden = at::rand({num_rows, hidden_size});
  const at::Tensor lm_head = at::rand({v, hidden_size});
  at::Tensor d_lm_head = at::zeros({v, hidden_size});
  at::Tensor logits = at::empty({num_rows, v});
  at::Tensor d_hidden = at::empty({num_rows, hidden_size});
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    at::mm_out(logits, hidden, lm_head.t());
    at::mm_out(d_hidden, logits, lm_head);
    d_lm_head.addmm_(logits.t(), hidden);
    const double flops = 6.0 * static_cast<double>(num_rows * hidden_size * v);
    best = std::max(best, flops / SecondsSince(start) / 1e9);
  }
  return best;
}

// Seconds of the three products alone, as a linear layer of the head's size computes them: packed
// weights times hidden, and the gradients of both.
double ProductSeconds(const at::Tensor& hidden, const at::Tensor& lm_head,
                      const at::Tensor& d_lm_head, int repeats) {
  const PackedWeight weight({lm_head}, {}, {}, PackedWeight::Pairs::kPlain);
  const at::Tensor logits = at::empty({hidden.size(0), lm_head.size(0)}, hidden.options());
  double best = 1e9;
  for (int i = 0; i < std::max(repeats, 3); ++i) {
    const auto start = std::chrono::steady_clock::now();
    weight.MultiplyInto(hidden, logits);
    InputGradient(logits, {lm_head});
    AddWeightGradients(logits, hidden, {{d_lm_head, 0}});
    best = std::min(best, SecondsSince(start));
  }
  return best;
}

// The tensors that one call of the head reads and writes.
struct HeadCall {
  bool student;
  at::Tensor hidden, lm_head, d_lm_head;  // d_lm_head only for the student
  HeadTargets targets;
  HeadOptions options;
  ScoringOptions scoring;

  // Returns d_hidden, undefined for the teacher.
  at::Tensor Run() const {
    if (student) return StudentHead(hidden, lm_head, targets, options, d_lm_head).d_hidden_NH;
    ScoreRowsOfHead(hidden, lm_head, targets.sampled_ids_N, {}, scoring);
    return {};
  }
};

HeadCall ReadCall(bool student, const std::string& data, int64_t n, int64_t h, int64_t v, int64_t k,
                  at::ScalarType dtype, int64_t workspace_mib) {
  HeadCall call;
  call.student = student;
  call.hidden = Read(data + "hidden", {n, h}, dtype);
  call.lm_head = Read(data + "lm_head", {v, h}, dtype);
  if (student) call.d_lm_head = at::zeros({v, h});
  HeadTargets& targets = call.targets;
  targets.support_ids_Nk = Read(data + "support_ids", {n, k}, at::kInt);
  targets.teacher_log_probs_Nk = Read(data + "teacher_log_probs", {n, k}, at::kFloat);
  targets.teacher_log_tail_N = Read(data + "teacher_log_tail", {n}, at::kFloat);
  targets.sampled_ids_N = Read(data + "sampled_ids", {n}, at::kInt);
  targets.row_weights_N = Read(data + "row_weights", {n}, at::kFloat);
  call.options.objective = FindObjective("ta_opd").value();
  call.options.top_k_metrics = true;  // the peers find the student's top-k, too
  call.options.workspace_bytes = workspace_mib > 0
                                     ? workspace_mib << 20
                                     : n * v * (dtype == at::kBFloat16 ? 2 * 29 : 4 * 35) / 100;
  call.scoring.top_k = static_cast<int32_t>(k);
  call.scoring.workspace_bytes = call.options.workspace_bytes;
  return call;
}

// The same on a few rows and a part of the vocabulary: after it, libraries are loaded and threads
// are started.
void WarmUp(HeadCall call) {
  const int64_t rows = std::min<int64_t>(call.hidden.size(0), 4);
  const int64_t v = std::min<int64_t>(call.lm_head.size(0), 4096);
  const int64_t k = call.targets.support_ids_Nk.size(1);
  call.hidden = call.hidden.narrow(0, 0, rows);
  call.lm_head = call.lm_head.narrow(0, 0, v);
  if (call.student) call.d_lm_head = at::zeros(call.lm_head.sizes());
  for (at::Tensor* tensor : call.targets.Tensors()) {
    if (tensor->defined()) *tensor = tensor->narrow(0, 0, rows);
  }
  call.targets.support_ids_Nk = at::arange(k, at::kInt).expand({rows, k}).contiguous();
  call.targets.sampled_ids_N = at::zeros({rows}, at::kInt);
  call.Run();
}

struct Measured {
  std::vector<double> times, cpu_times;  // seconds, one per call
  double memory_kib = 0;                 // peak of the first call, without its results
  at::Tensor d_hidden;                   // of the last call
};

Measured Measure(const HeadCall& call, int repeats) {
  Measured measured;
  for (int i = 0; i < repeats; ++i) {
    if (call.student) call.d_lm_head.zero_();
    measured.d_hidden.reset();
    ResetPeak();
    const int64_t before = StatusBytes("VmRSS");
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t cpu_start = std::clock();
    measured.d_hidden = call.Run();
    measured.times.push_back(SecondsSince(start));
    measured.cpu_times.push_back(static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC);
    if (i > 0) continue;
    measured.memory_kib = static_cast<double>(StatusBytes("VmHWM") - before) / 1024;
    if (call.student) {
      measured.memory_kib -= static_cast<double>(measured.d_hidden.nbytes()) / 1024;
    }
  }
  return measured;
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() != 10) {
    std::fprintf(stderr,
                 "head_call student|teacher DIR N H V K DTYPE THREADS REPEATS WORKSPACE_MIB\n");
    return 2;
  }
  const bool student = arguments[0] == "student";
  const std::string data = arguments[1] + "/";
  const int64_t n = std::stoll(arguments[2]);
  const int64_t h = std::stoll(arguments[3]);
  const int64_t v = std::stoll(arguments[4]);
  const int64_t k = std::stoll(arguments[5]);
  const at::ScalarType dtype = arguments[6] == "bfloat16" ? at::kBFloat16 : at::kFloat;
  at::set_num_threads(std::stoi(arguments[7]));
  const int repeats = std::stoi(arguments[8]);

  const HeadCall call = ReadCall(student, data, n, h, v, k, dtype, std::stoll(arguments[9]));
  WarmUp(call);
  const Measured measured = Measure(call, repeats);
  nlohmann::ordered_json json;
  json["time_s"] = *std::min_element(measured.times.begin(), measured.times.end());
  json["times_s"] = measured.times;
  json["cpu_s"] = *std::min_element(measured.cpu_times.begin(), measured.cpu_times.end());
  json["memory_mib"] = measured.memory_kib / 1024;
  json["method"] = MethodOf(dtype);
  json["mm_gflops"] = MatmulRate(n, h, v);
  if (student) {
    json["products_s"] = ProductSeconds(call.hidden, call.lm_head, call.d_lm_head, repeats);
    const at::Tensor exact = Read(data + "d_hidden", {n, h}, at::kDouble);
    const at::Tensor error = (measured.d_hidden.to(at::kDouble) - exact).norm() / exact.norm();
    json["d_hidden_error"] = error.item<double>();
  }
  std::printf("%s\n", json.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace taopd

int main(int argc, char** argv) {
  try {
    return taopd::Main({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
