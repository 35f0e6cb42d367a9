// The intermediate results that a decoder does not keep for its backward pass but computes again.
// This header does not depend on LibTorch.
#pragma once

namespace taopd {

// The gradients have the same bits with all of these.
enum class Recompute {
  kNone,       // keep everything
  kAttention,  // compute again, in each layer: the projections of queries, keys and values, their
               // norms and rotation, attention, and the output's projection
  kFull,       // keep only the residual stream before each layer, and compute again all of a layer
};

}  // namespace taopd
