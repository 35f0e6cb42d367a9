#include "kernels/torch/composed/adamw.h"

#include <c10/core/GradMode.h>

#include <algorithm>

namespace taopd {
namespace {

// The temporary tensors of this many elements exist at a time.
constexpr int64_t kElementsAtOnce = int64_t{1} << 20;
constexpr int64_t kMask32 = 0xffffffff;

// Returns x c modulo 2^32 for x in [0, 2^32). No intermediate number exceeds 2^48.
at::Tensor TimesModulo32(const at::Tensor& x, uint32_t c) {
  const at::Tensor low = x * static_cast<int64_t>(c & 0xffff);
  const at::Tensor high = (x * static_cast<int64_t>(c >> 16)).bitwise_and(0xffff);
  return (low + high.bitwise_left_shift(16)).bitwise_and(kMask32);
}

at::Tensor XorShifted(const at::Tensor& x, int64_t bits) {
  return x.bitwise_xor(x.bitwise_right_shift(bits));
}

// Returns AdamWRandomBits of the elements [first, first + num), as int64.
at::Tensor RandomBits(uint64_t key, int64_t first, int64_t num, at::Device device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  const auto low = static_cast<int64_t>(key & kMask32), high = static_cast<int64_t>(key >> 32);
  at::Tensor x =
      (at::arange(first, first + num, options).bitwise_and(kMask32) + low).bitwise_and(kMask32);
  x = TimesModulo32(XorShifted(x, 17), 0xed5ad4bbu);
  x = (XorShifted(x, 11) + high).bitwise_and(kMask32);
  x = TimesModulo32(x, 0xac4c1b51u);
  x = TimesModulo32(XorShifted(x, 15), 0x31848babu);
  return XorShifted(x, 14);
}

// Returns RoundToBfloat16 of the float32 numbers x, each with 16 random bits.
at::Tensor RoundedToBfloat16(const at::Tensor& x, const at::Tensor& random_16) {
  const at::Tensor bits = x.view(at::kInt).to(at::kLong).bitwise_and(kMask32);
  const at::Tensor is_finite = bits.bitwise_and(0x7fffffff).lt(0x7f800000);
  const at::Tensor rounded =
      (bits + random_16.masked_fill(is_finite.logical_not(), 0)).bitwise_right_shift(16);
  const at::Tensor wide = rounded.bitwise_left_shift(16).masked_fill(at::isnan(x), 0x7fc00000);
  // int64 to int32 keeps the low bits.
  return wide.to(at::kInt).view(at::kFloat).to(at::kBFloat16);
}

// Elements [first, first + num) of a parameter.
void UpdatePiece(const AdamWSettings& settings, const AdamWState& state, int64_t first,
                 int64_t num) {
  const auto factors = MakeAdamWFactors<float>(settings);
  const auto piece = [&](const at::Tensor& x) {
    return x.defined() ? x.view({-1}).narrow(0, first, num) : x;
  };
  const at::Tensor gradient = piece(state.gradient).to(at::kFloat) * factors.gradient_scale;
  const at::Tensor stored_avg = piece(state.exp_avg), stored_avg_sq = piece(state.exp_avg_sq);
  const at::Tensor avg = stored_avg.to(at::kFloat), avg_sq = stored_avg_sq.to(at::kFloat);
  avg.add_((gradient - avg) * factors.one_minus_beta1);
  avg_sq.mul_(factors.beta2).add_(gradient * gradient * factors.one_minus_beta2);

  const at::Tensor parameter = piece(state.parameter);
  const at::Tensor master = piece(state.master);
  const at::Tensor updated = master.defined() ? master : parameter.to(at::kFloat);
  const auto keep = static_cast<float>(1 - settings.lr * state.weight_decay);
  updated.mul_(keep).sub_(avg * factors.step_size /
                          (avg_sq.sqrt() * factors.root_scale + factors.eps));

  const int64_t element = state.first_element + first;
  if (stored_avg.scalar_type() == at::kBFloat16) {
    const at::Tensor bits =
        RandomBits(AdamWRandomKey(settings.step, state.number), element, num, stored_avg.device());
    stored_avg.copy_(RoundedToBfloat16(avg, bits.bitwise_and(0xffff)));
    stored_avg_sq.copy_(RoundedToBfloat16(avg_sq, bits.bitwise_right_shift(16)));
  }
  if (parameter.scalar_type() == at::kFloat) return;
  if (master.defined()) {
    parameter.copy_(updated);
    return;
  }
  const at::Tensor bits =
      RandomBits(AdamWWeightKey(settings.step, state.number), element, num, parameter.device());
  parameter.copy_(RoundedToBfloat16(updated, bits.bitwise_and(0xffff)));
}

template <typename Visit>
void ForEachPiece(int64_t size, const Visit& visit) {
  for (int64_t first = 0; first < size; first += kElementsAtOnce) {
    visit(first, std::min(kElementsAtOnce, size - first));
  }
}

}  // namespace

void UpdateAdamWComposed(const AdamWSettings& settings, const AdamWState& state) {
  const at::NoGradGuard no_grad;
  ForEachPiece(state.gradient.numel(),
               [&](int64_t first, int64_t num) { UpdatePiece(settings, state, first, num); });
}

double SumOfSquaresComposed(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  at::Tensor total;
  for (const at::Tensor& tensor : tensors) {
    ForEachPiece(tensor.numel(), [&](int64_t first, int64_t num) {
      const at::Tensor wide = tensor.view({-1}).narrow(0, first, num).to(at::kDouble);
      const at::Tensor sum = wide.square_().sum();
      total = total.defined() ? total + sum : sum;
    });
  }
  return total.defined() ? total.item<double>() : 0;
}

}  // namespace taopd
