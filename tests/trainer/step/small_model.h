// A model small enough to count its work by hand.
#pragma once

#include "common/model/config/model_config.h"

namespace taopd::testing {

// Queries of 2 heads of 4, keys and values of 1: in each layer, a token meets 2 * 8 * (8 + 4) + 3 *
// 8 * 16 = 576 weights. A row of the head has 8 * 32 = 256.
inline ModelConfig SmallModel() {
  return {.vocab_size = 32,
          .hidden_size = 8,
          .intermediate_size = 16,
          .num_hidden_layers = 2,
          .num_attention_heads = 2,
          .num_key_value_heads = 1,
          .head_dim = 4};
}

}  // namespace taopd::testing
