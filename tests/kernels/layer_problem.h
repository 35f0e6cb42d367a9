// Random inputs of the layers' kernels (taopd/layers/norms_and_swiglu.h), in both storage types.
#pragma once

#include <cstdint>
#include <vector>

#include "taopd/layers/norms_and_swiglu.h"
#include "tests/kernels/stored.h"

namespace taopd::testing {

struct RmsNormArrays {
  int64_t num_rows, size;
  bool has_added;
  Stored x, added, weight, d_normed, d_sum;  // in
  Stored sum, normed, d_x, d_weight;         // out
  std::vector<float> inverse_rms, partials;

  RmsNormArrays(DataType type, int64_t num_rows_, int64_t size_, bool has_added_)
      : num_rows(num_rows_), size(size_), has_added(has_added_) {
    const int64_t n = num_rows * size;
    x = Normal(type, n, 1, 2), added = Normal(type, n, 2), weight = Normal(type, size, 3, 0.3f, 1);
    d_normed = Normal(type, n, 4), d_sum = Normal(type, n, 5);
    sum = normed = d_x = Empty(type, n), d_weight = Empty(type, size);
    inverse_rms.resize(num_rows), partials.resize(NumPartials(num_rows) * size);
  }
  RmsNormForward Forward() {
    return {x.type,       num_rows,
            size,         1e-6f,
            x.In(),       has_added ? added.In() : nullptr,
            weight.In(),  has_added ? sum.Out() : nullptr,
            normed.Out(), inverse_rms.data()};
  }
  // After Forward has run.
  RmsNormBackward Backward() {
    return {x.type,      num_rows,           size,           has_added ? sum.In() : x.In(),
            weight.In(), inverse_rms.data(), d_normed.In(),  has_added ? d_sum.In() : nullptr,
            d_x.Out(),   d_weight.Out(),     partials.data()};
  }
};

struct HeadsArrays {
  int64_t num_tokens, num_heads, head_size;
  bool has_norm;
  Stored x, weight, cos, sin, d_out;  // in; d_out with heads first
  Stored out, d_x, d_weight;          // out
  std::vector<float> inverse_rms, partials;

  HeadsArrays(DataType type, int64_t num_tokens_, int64_t num_heads_, int64_t head_size_,
              bool has_norm_)
      : num_tokens(num_tokens_), num_heads(num_heads_), head_size(head_size_), has_norm(has_norm_) {
    const int64_t n = num_tokens * num_heads * head_size;
    x = Normal(type, n, 1, 2), weight = Normal(type, head_size, 2, 0.3f, 1);
    // The values are arbitrary: the kernels do not need cos^2 + sin^2 = 1.
    cos = Normal(type, num_tokens * head_size, 3), sin = Normal(type, num_tokens * head_size, 4);
    d_out = Normal(type, n, 5), out = d_x = Empty(type, n), d_weight = Empty(type, head_size);
    inverse_rms.resize(num_tokens * num_heads);
    partials.resize(NumPartials(num_tokens) * head_size);
  }
  HeadsForward Forward() {
    return {x.type,
            num_tokens,
            num_heads,
            head_size,
            1e-6f,
            x.In(),
            has_norm ? weight.In() : nullptr,
            cos.In(),
            sin.In(),
            out.Out(),
            has_norm ? inverse_rms.data() : nullptr};
  }
  HeadsBackward Backward() {
    return {x.type,
            num_tokens,
            num_heads,
            head_size,
            has_norm ? x.In() : nullptr,
            has_norm ? weight.In() : nullptr,
            has_norm ? inverse_rms.data() : nullptr,
            cos.In(),
            sin.In(),
            d_out.In(),
            head_size,
            num_tokens * head_size,
            d_x.Out(),
            has_norm ? d_weight.Out() : nullptr,
            partials.data()};
  }
};

struct SwiGluArrays {
  Stored gate, up, d_y;    // in
  Stored y, d_gate, d_up;  // out

  SwiGluArrays(DataType type, int64_t size) {
    gate = Normal(type, size, 1, 4), up = Normal(type, size, 2), d_y = Normal(type, size, 3);
    y = d_gate = d_up = Empty(type, size);
  }
  SwiGluForward Forward() { return {gate.type, gate.size(), gate.In(), up.In(), y.Out()}; }
  SwiGluBackward Backward() {
    return {gate.type, gate.size(), gate.In(), up.In(), d_y.In(), d_gate.Out(), d_up.Out()};
  }
};

}  // namespace taopd::testing
