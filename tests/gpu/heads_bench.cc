// Prints a table that compares the heads on a GPU with what one would write in PyTorch, on the same
// tensors.
//
// Student: forward and both gradients. "eager" is the paper's listing with autograd on logits of
// the inputs' dtype (bf16) or widened to float32; "chunked" is the same in chunks of 1024 rows.
// Teacher: top-k, log-sum-exp, sampled log-prob. Times are medians of CUDA events; memory is the
// allocator's peak beyond inputs and gradient buffers; error is the norm of d hidden's error over
// its norm, of the first rows, against float64.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/torch/head/scoring_head.h"
#include "kernels/torch/head/student_head.h"

namespace taopd {
namespace {

constexpr int64_t kErrorRows = 64;  // float64 logits of all rows would not be of use
constexpr int kRepeats = 10;
constexpr double kEpsilon = 1e-6;  // of the listing

struct Shape {
  int64_t num_rows, hidden_size, vocab_size, k;
};

struct Inputs {
  at::Tensor hidden, lm_head, d_lm_head;
  HeadTargets targets;
};

Inputs MakeInputs(const Shape& shape) {
  at::manual_seed(1);
  const at::TensorOptions on_gpu = at::TensorOptions().device(at::kCUDA).dtype(at::kFloat);
  Inputs inputs;
  inputs.hidden = at::randn({shape.num_rows, shape.hidden_size}, on_gpu).to(at::kBFloat16);
  // Logits of standard deviation 6: peaked distributions with a long tail.
  inputs.lm_head = (at::randn({shape.vocab_size, shape.hidden_size}, on_gpu) *
                    (6 / std::sqrt(static_cast<double>(shape.hidden_size))))
                       .to(at::kBFloat16);
  inputs.d_lm_head = at::zeros(inputs.lm_head.sizes(), on_gpu);
  std::vector<at::Tensor> ids, log_q, tail, sampled;
  for (int64_t begin = 0; begin < shape.num_rows; begin += 512) {
    const int64_t num = std::min<int64_t>(512, shape.num_rows - begin);
    at::Tensor teacher =
        at::mm(inputs.hidden.narrow(0, begin, num), inputs.lm_head.t()).to(at::kFloat);
    teacher += at::randn_like(teacher) * 0.5;
    teacher = at::log_softmax(teacher, 1);
    const auto [top, top_ids] = teacher.topk(shape.k, 1);
    ids.push_back(top_ids.to(at::kInt));
    log_q.push_back(top);
    tail.push_back(
        at::logsumexp(teacher.scatter(1, top_ids, -std::numeric_limits<double>::infinity()), 1));
    sampled.push_back(top_ids.select(1, 0).to(at::kInt));
  }
  HeadTargets& targets = inputs.targets;
  targets.support_ids_Nk = at::cat(ids);
  targets.teacher_log_probs_Nk = at::cat(log_q);
  targets.teacher_log_tail_N = at::cat(tail);
  targets.sampled_ids_N = at::cat(sampled);
  targets.row_weights_N =
      at::full({shape.num_rows}, 1.0 / static_cast<double>(shape.num_rows), on_gpu);
  return inputs;
}

at::Tensor LogTail(const at::Tensor& log_p) {
  return at::log1p(-at::logsumexp(log_p, 1, true).clamp_max(-kEpsilon).exp());
}

// The listing's loss on rows [begin, begin + num), summed with their weights.
at::Tensor ListingLoss(const at::Tensor& logits, const HeadTargets& t, int64_t begin, int64_t num) {
  const at::Tensor ids = t.support_ids_Nk.narrow(0, begin, num).to(at::kLong);
  const at::Tensor log_q_support = t.teacher_log_probs_Nk.narrow(0, begin, num);
  const at::Tensor support = at::log_softmax(logits, 1).gather(1, ids).to(at::kFloat);
  const at::Tensor log_p = at::cat({support, LogTail(support)}, 1);
  const at::Tensor log_q = at::cat({log_q_support, LogTail(log_q_support)}, 1);
  return ((log_p.exp() * (log_p - log_q)).sum(1) * t.row_weights_N.narrow(0, begin, num)).sum();
}

// Returns d hidden; lm_head's gradient is made as well.
at::Tensor Listing(const Inputs& inputs, bool wide, int64_t chunk) {
  const at::Tensor hidden = inputs.hidden.detach().requires_grad_(true);
  const at::Tensor lm_head = inputs.lm_head.detach().requires_grad_(true);
  for (int64_t begin = 0; begin < hidden.size(0); begin += chunk) {
    const int64_t num = std::min(chunk, hidden.size(0) - begin);
    at::Tensor logits = at::mm(hidden.narrow(0, begin, num), lm_head.t());
    if (wide) logits = logits.to(at::kFloat);
    ListingLoss(logits, inputs.targets, begin, num).backward();
  }
  return hidden.grad();
}

at::Tensor ExactDHidden(const Inputs& inputs) {
  const int64_t num = std::min(kErrorRows, inputs.hidden.size(0));
  const at::Tensor wide = inputs.lm_head.to(at::kDouble);
  const at::Tensor logits =
      at::mm(inputs.hidden.narrow(0, 0, num).to(at::kDouble), wide.t()).requires_grad_(true);
  const HeadTargets& t = inputs.targets;
  const at::Tensor ids = t.support_ids_Nk.narrow(0, 0, num).to(at::kLong);
  const at::Tensor all = at::log_softmax(logits, 1);
  const at::Tensor tail =
      at::logsumexp(all.scatter(1, ids, -std::numeric_limits<double>::infinity()), 1, true);
  const at::Tensor log_p = at::cat({all.gather(1, ids), tail}, 1);
  const at::Tensor log_q = at::cat({t.teacher_log_probs_Nk.narrow(0, 0, num),
                                    t.teacher_log_tail_N.narrow(0, 0, num).unsqueeze(1)},
                                   1)
                               .to(at::kDouble);
  ((log_p.exp() * (log_p - log_q)).sum(1) * t.row_weights_N.narrow(0, 0, num)).sum().backward();
  return at::mm(logits.grad(), wide);
}

struct Measured {
  std::string name;
  double ms = 0;
  double peak_mib = 0;
  double error = -1;
};

double PeakMib() {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
  return static_cast<double>(stats.allocated_bytes[0].peak) / (1 << 20);
}

Measured Measure(const std::string& name, const std::function<at::Tensor()>& work,
                 const at::Tensor& exact) {
  Measured measured{name};
  try {
    c10::cuda::CUDACachingAllocator::resetPeakStats(0);
    const double before = PeakMib();
    const at::Tensor d_hidden = work();
    cudaDeviceSynchronize();
    measured.peak_mib = PeakMib() - before;
    if (exact.defined() && d_hidden.defined()) {
      const at::Tensor ours = d_hidden.narrow(0, 0, exact.size(0)).to(at::kDouble);
      measured.error = ((ours - exact).norm() / exact.norm()).item<double>();
    }
    std::vector<double> times;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int i = 0; i < kRepeats; ++i) {
      const cudaStream_t stream = at::cuda::getCurrentCUDAStream().stream();
      cudaEventRecord(begin, stream);
      work();
      cudaEventRecord(end, stream);
      cudaEventSynchronize(end);
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      times.push_back(ms);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(times.begin(), times.end());
    measured.ms = times[times.size() / 2];
  } catch (const c10::Error& error) {
    measured.name += " (failed: " + std::string(error.what_without_backtrace()).substr(0, 60) + ")";
  }
  c10::cuda::CUDACachingAllocator::emptyCache();
  return measured;
}

void Report(const char* part, const Shape& shape, double gemms, const Measured& measured) {
  const double flops = gemms * 2.0 * static_cast<double>(shape.num_rows) *
                       static_cast<double>(shape.hidden_size) *
                       static_cast<double>(shape.vocab_size);
  const double tflops = measured.ms > 0 ? flops / measured.ms * 1e-9 : 0;
  std::printf("%-8s N=%-5ld H=%-5ld V=%-7ld k=%-3ld %-30s %9.2f ms %8.1f TFLOP/s %9.0f MiB", part,
              static_cast<long>(shape.num_rows), static_cast<long>(shape.hidden_size),
              static_cast<long>(shape.vocab_size), static_cast<long>(shape.k),
              measured.name.c_str(), measured.ms, tflops, measured.peak_mib);
  if (measured.error >= 0) std::printf("  error %.2e", measured.error);
  std::printf("\n");
  std::fflush(stdout);
}

void Student(const Shape& shape) {
  const Inputs inputs = MakeInputs(shape);
  const at::Tensor exact = ExactDHidden(inputs);
  const auto report = [&](const Measured& m) { Report("student", shape, 3, m); };
  for (const char* objective : {"ta_opd", "normalized"}) {
    for (int64_t workspace_mib : {256, 640, 1300, 3000}) {
      HeadOptions options;
      options.objective = FindObjective(objective).value();
      options.workspace_bytes = workspace_mib << 20;
      const bool is_listing = objective == std::string("ta_opd");
      report(Measure(
          std::string("ours ") + objective + " " + std::to_string(workspace_mib) + " MiB",
          [&] {
            return StudentHead(inputs.hidden, inputs.lm_head, inputs.targets, options,
                               inputs.d_lm_head)
                .d_hidden_NH;
          },
          is_listing ? exact : at::Tensor()));
    }
  }
  report(Measure(
      "eager, bf16 logits", [&] { return Listing(inputs, false, shape.num_rows); }, exact));
  report(Measure(
      "eager, float32 logits", [&] { return Listing(inputs, true, shape.num_rows); }, exact));
  report(Measure(
      "chunked, float32 logits", [&] { return Listing(inputs, true, 1024); }, exact));
  // The three products alone, bf16 in and out.
  const at::Tensor logits = at::empty({shape.num_rows, shape.vocab_size}, inputs.hidden.options());
  const at::Tensor d_hidden = at::empty_like(inputs.hidden);
  const at::Tensor d_lm_head = at::empty_like(inputs.lm_head);
  report(Measure("the three products, bf16",
                 [&] {
                   at::Tensor out = logits;
                   at::mm_out(out, inputs.hidden, inputs.lm_head.t());
                   out = d_hidden;
                   at::mm_out(out, logits, inputs.lm_head);
                   out = d_lm_head;
                   at::mm_out(out, logits.t(), inputs.hidden);
                   return at::Tensor();
                 },
                 {}));
}

void Teacher(const Shape& shape) {
  const Inputs inputs = MakeInputs({shape.num_rows, shape.hidden_size, shape.vocab_size, 1});
  const auto report = [&](const Measured& m) { Report("teacher", shape, 1, m); };
  ScoringOptions options;
  options.top_k = static_cast<int32_t>(shape.k);
  options.rank = true;
  options.workspace_bytes = int64_t{1300} << 20;
  report(Measure("ours",
                 [&] {
                   ScoreRowsOfHead(inputs.hidden, inputs.lm_head, inputs.targets.sampled_ids_N, {},
                                   options);
                   return at::Tensor();
                 },
                 {}));
  const at::Tensor sampled = inputs.targets.sampled_ids_N.to(at::kLong).unsqueeze(1);
  report(Measure(
      "log_softmax, topk, 1024 rows",
      [&] {
        for (int64_t begin = 0; begin < shape.num_rows; begin += 1024) {
          const int64_t num = std::min<int64_t>(1024, shape.num_rows - begin);
          const at::Tensor log_p = at::log_softmax(
              at::mm(inputs.hidden.narrow(0, begin, num), inputs.lm_head.t()).to(at::kFloat), 1);
          const at::Tensor y = log_p.gather(1, sampled.narrow(0, begin, num));
          const at::Tensor rank = (log_p >= y).sum(1);
          log_p.topk(shape.k, 1);
        }
        return at::Tensor();
      },
      {}));
  report(Measure("the product, bf16",
                 [&] {
                   at::mm(inputs.hidden, inputs.lm_head.t());
                   return at::Tensor();
                 },
                 {}));
}

}  // namespace
}  // namespace taopd

int main() {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    std::fprintf(stderr, "gpu_heads_bench: no CUDA device\n");
    return 1;
  }
  for (const taopd::Shape& shape :
       {taopd::Shape{8192, 2048, 151936, 16}, taopd::Shape{4096, 4096, 128256, 16}}) {
    taopd::Student(shape);
  }
  for (int64_t k : {16, 128}) taopd::Teacher({8192, 2048, 151936, k});
  return 0;
}
