#include "taopd/layers/adamw.h"

#include <algorithm>

#include "kernels/cpu/layers/layer_loops.h"
#include "kernels/cpu/layers/rows.h"
#include "taopd/base/round_up.h"

namespace taopd::cpu {
namespace {

// Calls body(tensor, first element, number of elements, block) for blocks [begin, end).
template <typename Body>
void ForBlocks(const std::vector<AdamWTensor>& tensors, int64_t begin, int64_t end,
               const Body& body) {
  // The last tensor whose first block is at or before `begin`.
  auto tensor =
      std::upper_bound(tensors.begin(), tensors.end(), begin,
                       [](int64_t block, const AdamWTensor& t) { return block < t.first_block; });
  --tensor;
  for (int64_t block = begin; block < end; ++block) {
    while (tensor + 1 != tensors.end() && (tensor + 1)->first_block <= block) ++tensor;
    const int64_t first = (block - tensor->first_block) * kAdamWBlock;
    body(*tensor, first, std::min(kAdamWBlock, tensor->size - first), block);
  }
}

int64_t NumBlocks(const std::vector<AdamWTensor>& tensors) {
  if (tensors.empty()) return 0;
  const AdamWTensor& last = tensors.back();
  return last.first_block + CeilDiv(last.size, kAdamWBlock);
}

}  // namespace

void AdamW(const AdamWSettings& settings, const std::vector<AdamWTensor>& tensors,
           const ParallelFor& parallel_for) {
  const auto factors = MakeAdamWFactors<float>(settings);
  parallel_for(NumBlocks(tensors), 1, [&](int64_t begin, int64_t end) {
    ForBlocks(tensors, begin, end,
              [&](const AdamWTensor& tensor, int64_t first, int64_t num, int64_t) {
                const auto keep = static_cast<float>(1 - settings.lr * tensor.weight_decay);
                AdamWElements elements;
                elements.size = num;
                elements.gradient = At(tensor.gradient, first, 1, tensor.gradient_type);
                if (tensor.master != nullptr) elements.master = tensor.master + first;
                elements.exp_avg = At(tensor.exp_avg, first, 1, tensor.moments_type);
                elements.exp_avg_sq = At(tensor.exp_avg_sq, first, 1, tensor.moments_type);
                elements.bfloat16_moments = tensor.moments_type == DataType::kBFloat16;
                elements.random_key = AdamWRandomKey(settings.step, tensor.parameter);
                elements.weight_key = AdamWWeightKey(settings.step, tensor.parameter);
                elements.first_element = static_cast<uint32_t>(tensor.first_element + first);
                if (tensor.bfloat16 != nullptr) elements.bfloat16 = tensor.bfloat16 + first;
                BestLayerLoops(tensor.gradient_type).adamw(factors, keep, elements);
              });
  });
}

double SumOfSquares(const std::vector<AdamWTensor>& tensors, const ParallelFor& parallel_for) {
  std::vector<double> sums(NumBlocks(tensors));
  parallel_for(static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    ForBlocks(tensors, begin, end,
              [&](const AdamWTensor& tensor, int64_t first, int64_t num, int64_t block) {
                sums[block] =
                    BestLayerLoops(tensor.gradient_type)
                        .sum_of_squares(At(tensor.gradient, first, 1, tensor.gradient_type), num);
              });
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

}  // namespace taopd::cpu
