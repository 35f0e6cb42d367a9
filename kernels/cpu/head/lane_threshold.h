// A lower bound of the k largest of a few hundred numbers, with which a selection skips most of
// them.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

namespace taopd::cpu {

// Returns whether the next kComparedAtOnce numbers are all less than `bound`; a NaN is not.
inline constexpr int64_t kComparedAtOnce = 16;
inline bool AreAllBelow(const float* x, float bound) {
  typedef float Floats __attribute__((vector_size(16)));
  typedef int32_t Masks __attribute__((vector_size(16)));
  Floats next[kComparedAtOnce / 4];
  std::memcpy(next, x, sizeof(next));
  const Masks is_below =
      (next[0] < bound) & (next[1] < bound) & (next[2] < bound) & (next[3] < bound);
  uint64_t halves[2];
  std::memcpy(halves, &is_below, sizeof(halves));
  return (halves[0] & halves[1]) == ~uint64_t{0};
}

// Returns the k-th largest of 16 kVectors maxima, each over every (16 kVectors)-th number.
template <int kVectors>
inline float KthLargestOfLanes(const float* x, int64_t num, int32_t k) {
  typedef float Floats __attribute__((vector_size(64)));
  typedef int32_t Counts __attribute__((vector_size(64)));
  constexpr int kLanes = 16 * kVectors;
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  Floats largest[kVectors];
  std::memcpy(largest, lanes, sizeof(lanes));
  int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes) {
    Floats next[kVectors];
    std::memcpy(next, x + i, sizeof(next));
    for (int j = 0; j < kVectors; ++j) largest[j] = next[j] > largest[j] ? next[j] : largest[j];
  }
  std::memcpy(lanes, largest, sizeof(lanes));
  for (int j = 0; i + j < num; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];

  std::memcpy(largest, lanes, sizeof(lanes));
  Counts larger[kVectors] = {};  // the number of lanes that are larger than this one
  for (const float lane : lanes) {
    for (int j = 0; j < kVectors; ++j) larger[j] -= lane > largest[j];
  }
  int32_t ranks[kLanes];
  std::memcpy(ranks, larger, sizeof(ranks));
  float kth = std::numeric_limits<float>::infinity();
  for (int j = 0; j < kLanes; ++j) {
    if (ranks[j] < k && lanes[j] < kth) kth = lanes[j];
  }
  return kth;
}

// Returns a number that at least k of x[num] reach or exceed, or -inf. NaNs count as -inf.
// REQUIRES: 1 <= k <= num.
inline float LowerBoundOfTopK(const float* x, int64_t num, int32_t k) {
  if (k <= 8) return KthLargestOfLanes<1>(x, num, k);
  if (k <= 16) return KthLargestOfLanes<2>(x, num, k);
  if (k <= 32) return KthLargestOfLanes<4>(x, num, k);
  return -std::numeric_limits<float>::infinity();
}

}  // namespace taopd::cpu
