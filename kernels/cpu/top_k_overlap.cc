#include "kernels/cpu/top_k_overlap.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "taopd/log_math.h"

namespace taopd::cpu {
namespace {

// How many of the rest come before (logit, id), counted up to `enough`.
int32_t CountAhead(const float* rest, const float* tile_max, int64_t vocabulary_size, float logit,
                   int32_t id, int32_t enough) {
  const bool ties = logit != NegativeInfinity<float>();  // the support's own places are -inf
  int32_t count = 0;
  for (int64_t begin = 0; begin < vocabulary_size && count < enough; begin += kTileSize) {
    if (*tile_max++ < logit) continue;
    const int64_t end = std::min(vocabulary_size, begin + kTileSize);
    for (int64_t v = begin; v < end; ++v) {
      count += rest[v] > logit || (ties && rest[v] == logit && v < id);
    }
  }
  return std::min(count, enough);
}

}  // namespace

void MarkStudentTopK(const int32_t* ids, const float* taken, int32_t k, const float* rest,
                     const float* tile_max, int64_t vocabulary_size, std::vector<int32_t>* order,
                     uint8_t* in_top_k) {
  order->resize(k);
  std::iota(order->begin(), order->end(), 0);
  const auto key = [&](int32_t j) {  // a NaN would break the ordering
    return std::isnan(taken[j]) ? NegativeInfinity<float>() : taken[j];
  };
  std::sort(order->begin(), order->end(), [&](int32_t left, int32_t right) {
    return key(left) > key(right) || (key(left) == key(right) && ids[left] < ids[right]);
  });
  int32_t inside = 0;   // the first `inside` of the order are known to be in the top k
  int32_t outside = k;  // those from `outside` on are known not to be
  while (inside < outside) {
    const int32_t middle = inside + (outside - inside) / 2;
    const int32_t j = (*order)[middle];
    const int32_t room = k - middle;  // fewer than this many of the rest may be ahead
    if (CountAhead(rest, tile_max, vocabulary_size, key(j), ids[j], room) < room) {
      inside = middle + 1;
    } else {
      outside = middle;
    }
  }
  for (int32_t i = 0; i < k; ++i) in_top_k[(*order)[i]] = i < inside ? 1 : 0;
}

}  // namespace taopd::cpu
