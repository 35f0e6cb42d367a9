// The copy of a model's matrices that inference on the CPU computes from: projections that read the
// same input fused into one, and laid out for the kernels (kernels/torch/gemm/packed_weight.h).
// Embeddings, norms and the head's rows by id are read where they are.
//
// The parameters stay the truth. WeightVersion tells whether they were written; Refresh then packs
// again what changed, in place.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/model/weights/weights.h"
#include "kernels/torch/gemm/packed_weight.h"

namespace taopd {

struct PackedExpert {
  PackedWeight gate_up;  // [2 I, H]
  PackedWeight down;     // [H, I]
};

struct PackedLayer {
  PackedWeight qkv;      // [Q + 2 K, H]
  PackedWeight o;        // [H, Q]
  PackedWeight gate_up;  // [2 I, H]; undefined in a sparse layer
  PackedWeight down;     // [H, I]
  PackedWeight router;   // [E, H]; undefined in a dense layer
  std::vector<PackedExpert> experts;
};

// Not thread-safe.
class PackedWeights {
 public:
  // Packs the layers. Keeps references to the tensors of `weights`. done(matrix) is called when a
  // matrix has been packed.
  PackedWeights(const ModelWeights& weights, std::function<void(const at::Tensor& matrix)> done);

  const PackedLayer& layer(size_t i) const { return layers_[i]; }
  // The head, packed at the first call: training does not need it.
  const PackedWeight& lm_head();
  void Refresh();
  // PackedWeight::unplanned_bytes of all matrices that are packed.
  int64_t unplanned_bytes() const;
  // Forgets the tensors: the packed copies stay as they are. REQUIRES: lm_head() was called.
  void DropSources();

 private:
  // Calls function(weight) for every matrix that is packed.
  template <typename Self, typename Function>
  static void ForEach(Self* self, const Function& function);

  std::function<void(const at::Tensor&)> done_;
  at::Tensor lm_head_VH_;
  std::vector<PackedLayer> layers_;
  PackedWeight lm_head_;
};

// The sum of the version counters of all parameters, which every write through LibTorch and every
// step of the optimizer increases.
uint64_t WeightVersion(const std::vector<WeightSlot>& slots);

}  // namespace taopd
