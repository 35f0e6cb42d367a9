#include "kernels/torch/linear.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <vector>

namespace taopd {
namespace {

using at::native::TransposeType;

// Float32 bytes of a block of weights: half of a core's second-level cache.
constexpr int64_t kBlockBytes = 256 << 10;

std::atomic<int> widens_for_testing{-1};

bool ProcessorMultiplies(at::ScalarType dtype) {
#if defined(__x86_64__)
  static const bool has_bf16 = __builtin_cpu_supports("avx512bf16") != 0;
  static const bool has_fp16 = __builtin_cpu_supports("avx512fp16") != 0;
  return dtype == at::kBFloat16 ? has_bf16 : has_fp16;
#else
  return true;
#endif
}

void Widen(const at::BFloat16* from, int64_t n, float* to) {
  const auto* bits = reinterpret_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < n; ++i)
    to[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16);
}

void Widen(const at::Half* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
}

// out [T, N] = x [T, K] weight[N, K]^T + bias, rows of weight in blocks spread over the threads.
template <typename T>
void WidenedProduct(const at::Tensor& x_fp32, const at::Tensor& weight, const at::Tensor& bias,
                    at::Tensor* out) {
  const int64_t rows = x_fp32.size(0), K = weight.size(1), N = weight.size(0);
  const float* x = x_fp32.const_data_ptr<float>();
  const T* w = weight.const_data_ptr<T>();
  const T* b = bias.defined() ? bias.const_data_ptr<T>() : nullptr;
  T* y = out->mutable_data_ptr<T>();
  const int64_t row_bytes = K * static_cast<int64_t>(sizeof(float));
  // At least two blocks a thread; few rows make the block's product, not its widening, the smaller
  // part, and then larger blocks only cost cache.
  const int64_t block = std::clamp<int64_t>(kBlockBytes / row_bytes, 16, std::max<int64_t>(N, 16));
  const int64_t num_blocks = (N + block - 1) / block;
  at::parallel_for(0, num_blocks, 1, [&](int64_t first, int64_t last) {
    std::vector<float> wide(block * K), product(rows * block);
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = i * block, n = std::min(block, N - begin);
      Widen(w + begin * K, n * K, wide.data());
      // Column-major: product^T [n, rows] = wide [n, K] x^T [K, rows].
      at::native::cpublas::gemm(TransposeType::Transpose, TransposeType::NoTranspose, n, rows, K,
                                1.0f, wide.data(), K, x, K, 0.0f, product.data(), n);
      for (int64_t t = 0; t < rows; ++t) {
        const float* from = product.data() + t * n;
        T* to = y + t * N + begin;
        if (b == nullptr) {
          for (int64_t j = 0; j < n; ++j) to[j] = static_cast<T>(from[j]);
        } else {
          for (int64_t j = 0; j < n; ++j) {
            to[j] = static_cast<T>(from[j] + static_cast<float>(b[begin + j]));
          }
        }
      }
    }
  });
}

at::Tensor Forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t K = weight.size(1), N = weight.size(0);
  const at::Tensor x_fp32 = x.reshape({-1, K}).to(at::kFloat).contiguous();
  at::Tensor out = at::empty({x_fp32.size(0), N}, x.options());
  if (out.numel() > 0) {
    const at::Tensor rows_first = weight.contiguous();
    if (weight.scalar_type() == at::kBFloat16) {
      WidenedProduct<at::BFloat16>(x_fp32, rows_first, bias, &out);
    } else {
      WidenedProduct<at::Half>(x_fp32, rows_first, bias, &out);
    }
  }
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = N;
  return out.view(shape);
}

class WidenedLinearFunction : public torch::autograd::Function<WidenedLinearFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["has_bias"] = bias.defined();
    return Forward(x, weight, bias);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const int64_t K = weight.size(1), N = weight.size(0);
    const at::Tensor dy = gradients[0].reshape({-1, N}).to(at::kFloat);
    at::Tensor dx, dweight, dbias;
    if (context->needs_input_grad(0)) {
      dx = at::mm(dy, weight.to(at::kFloat)).to(x.scalar_type()).view(x.sizes());
    }
    if (context->needs_input_grad(1)) {
      dweight = at::mm(dy.t(), x.reshape({-1, K}).to(at::kFloat)).to(weight.scalar_type());
    }
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(2)) {
      dbias = dy.sum(0).to(weight.scalar_type());
    }
    return {dx, dweight, dbias};
  }
};

}  // namespace

bool WidensOnCpu(at::ScalarType dtype) {
  if (dtype != at::kBFloat16 && dtype != at::kHalf) return false;
  const int set = widens_for_testing.load(std::memory_order_relaxed);
  return set >= 0 ? set == 1 : !ProcessorMultiplies(dtype);
}

void SetWidensOnCpuForTesting(bool widens) { widens_for_testing = widens ? 1 : 0; }

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (x.is_cpu() && WidensOnCpu(x.scalar_type())) {
    TORCH_CHECK(weight.is_cpu() && weight.scalar_type() == x.scalar_type(), "weight is ",
                weight.scalar_type(), " on ", weight.device(), " but x is ", x.scalar_type(),
                " on ", x.device());
    TORCH_CHECK(x.size(-1) == weight.size(1), "x has ", x.size(-1), " columns, weight ",
                weight.size(1));
    if (at::GradMode::is_enabled()) return WidenedLinearFunction::apply(x, weight, bias);
    return Forward(x, weight, bias);
  }
  if (bias.defined()) return at::linear(x, weight, bias);
  return at::linear(x, weight);
}

}  // namespace taopd
