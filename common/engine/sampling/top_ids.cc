#include "common/engine/sampling/top_ids.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/cpu/math/row_math.h"
#include "kernels/cpu/math/weight_row.h"

namespace taopd {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Maps floats to integers in the same order.
int64_t KeyOf(float value) {
  const int32_t bits = std::bit_cast<int32_t>(value);
  return bits >= 0 ? int64_t{bits} : int64_t{std::numeric_limits<int32_t>::min()} - bits;
}
float FloatOf(int64_t key) {
  return std::bit_cast<float>(
      static_cast<int32_t>(key >= 0 ? key : int64_t{std::numeric_limits<int32_t>::min()} - key));
}

}  // namespace

float LargestThreshold(float low, float high, const std::function<bool(float)>& reaches) {
  int64_t reached = KeyOf(low), missed = KeyOf(high);
  while (missed - reached > 1) {
    const int64_t middle = reached + (missed - reached) / 2;
    (reaches(FloatOf(middle)) ? reached : missed) = middle;
  }
  return FloatOf(reached);
}

float NextAbove(float value) { return FloatOf(KeyOf(value) + 1); }

float MiddleFloat(float low, float high) {
  return FloatOf(KeyOf(low) + (KeyOf(high) - KeyOf(low)) / 2);
}

float BoundOfTop(std::span<const float> lane_max_L, int64_t count) {
  const cpu::RowMath& math = cpu::BestRowMath();
  const auto num_lanes = static_cast<int64_t>(lane_max_L.size());
  const auto reaches = [&](float bound) {
    return math.count_at_least(lane_max_L.data(), num_lanes, bound) >= count;
  };
  if (!reaches(kLowestFloat)) return kMinusInfinity;
  return LargestThreshold(kLowestFloat, std::numeric_limits<float>::infinity(), reaches);
}

bool CollectAtLeast(std::span<const float> logits_V, std::span<const float> lane_max_L, float bound,
                    size_t limit, std::vector<int32_t>* ids) {
  const auto vocab_size = static_cast<int64_t>(logits_V.size());
  ids->clear();
  for (size_t l = 0; l < lane_max_L.size(); ++l) {
    if (!(lane_max_L[l] >= bound) || lane_max_L[l] == kMinusInfinity) continue;
    const int64_t block = static_cast<int64_t>(l) / cpu::kWeightLanes;
    const int64_t lane = static_cast<int64_t>(l) % cpu::kWeightLanes;
    const int64_t end = std::min(vocab_size, (block + 1) * cpu::kWeightBlock);
    for (int64_t v = block * cpu::kWeightBlock + lane; v < end; v += cpu::kWeightLanes) {
      if (logits_V[v] >= bound && logits_V[v] > kMinusInfinity)
        ids->push_back(static_cast<int32_t>(v));
    }
    if (ids->size() > limit) return false;
  }
  return true;
}

void SortByLogit(std::span<const float> logits_V, std::vector<int32_t>* ids) {
  std::sort(ids->begin(), ids->end(), [&](int32_t a, int32_t b) {
    return logits_V[a] != logits_V[b] ? logits_V[a] > logits_V[b] : a < b;
  });
}

void TopIds(std::span<const float> logits_V, std::span<const float> lane_max_L, int64_t count,
            std::vector<int32_t>* ids) {
  const float bound = BoundOfTop(lane_max_L, count);
  const auto wanted = static_cast<size_t>(count);
  // If many logits are equal, or few are finite, all ids are candidates.
  if (!CollectAtLeast(logits_V, lane_max_L, bound, 16 * wanted, ids) || ids->size() < wanted) {
    ids->resize(logits_V.size());
    std::iota(ids->begin(), ids->end(), 0);
    const auto before = [&](int32_t a, int32_t b) {
      return logits_V[a] != logits_V[b] ? logits_V[a] > logits_V[b] : a < b;
    };
    std::nth_element(ids->begin(), ids->begin() + (count - 1), ids->end(), before);
    ids->resize(wanted);
  }
  SortByLogit(logits_V, ids);
  ids->resize(wanted);
}

}  // namespace taopd
