// One row of logits, from which a Sampler draws: the logits of all ids, or of candidates, with the
// sums of all other ids, which are called the rest. A place is an index into the arrays.
//
// Shapes: N places.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace taopd {

// A view: the arrays must live as long as it is used.
struct LogitRow {
  struct Rest {
    int64_t size = 0;  // number of ids
    // Their largest logit. -inf: they have no weight.
    float max = -std::numeric_limits<float>::infinity();
    // The sum of exp((logit - max) / temperature) over them, and the same under temperature 1. A
    // temperature of 0 counts as 1.
    double sum = 0, raw_sum = 0;
    // For each place, the part of `sum` that belongs to ids below the place's id.
    std::span<const double> sums_before_N;

    // Returns whether a place with this logit comes before all ids of the rest in descending order.
    bool IsBelow(float logit) const { return size == 0 || max < logit; }
  };

  std::span<const float> logits_N;
  std::span<const int32_t> ids_N;  // ascending; empty: all ids of the vocabulary in order
  Rest rest;

  int64_t vocab_size() const { return static_cast<int64_t>(logits_N.size()) + rest.size; }
};

// Returns the place of an id. REQUIRES: ids_N is empty or holds the id.
inline size_t PlaceOf(int32_t id, std::span<const int32_t> ids_N) {
  if (ids_N.empty()) return static_cast<size_t>(id);
  return std::lower_bound(ids_N.begin(), ids_N.end(), id) - ids_N.begin();
}

}  // namespace taopd
