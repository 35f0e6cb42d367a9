// What the backward pass of a decoder computes again instead of keeping it. No LibTorch here.
#pragma once

namespace taopd {

// The gradients are the same bits with all of them.
enum class Recompute {
  kNone,       // keep everything
  kAttention,  // of each layer, compute again: the projections of queries, keys and values, their
               // norms and rotation, attention, and the output's projection
  kFull,       // keep the residual stream before each layer alone, and compute again all of a layer
};

}  // namespace taopd
