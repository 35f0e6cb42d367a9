// Finds the largest logits of a row without sorting it. The lane maxima of WeightRow::max
// (kernels/cpu/math/weight_row.h) limit the search.
//
// Shapes: V vocabulary size, L the number of lane maxima.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace taopd {

// Returns the largest finite t with low <= t < high and reaches(t), or `low` if there is none.
// `reaches` must be true up to some number and false beyond it.
float LargestThreshold(float low, float high, const std::function<bool(float)>& reaches);

inline constexpr float kLowestFloat = std::numeric_limits<float>::lowest();
// Returns the next larger float. REQUIRES: value is finite.
float NextAbove(float value);
// Returns a float about halfway between two finite floats, counted in floats, or `low` if they are
// neighbors.
float MiddleFloat(float low, float high);

// Returns a lower bound that at least `count` logits reach: the count-th largest lane maximum, or
// -inf if there are fewer finite ones.
float BoundOfTop(std::span<const float> lane_max_L, int64_t count);

// Collects the ids whose logit is finite and at least `bound`, in no particular order. Returns
// false if there are more than `limit`.
bool CollectAtLeast(std::span<const float> logits_V, std::span<const float> lane_max_L, float bound,
                    size_t limit, std::vector<int32_t>* ids);

// Sorts ids in descending order of logit; ties go to the lower id.
void SortByLogit(std::span<const float> logits_V, std::vector<int32_t>* ids);

// Sets ids to those of the `count` largest logits, sorted by SortByLogit. REQUIRES: count <= V.
void TopIds(std::span<const float> logits_V, std::span<const float> lane_max_L, int64_t count,
            std::vector<int32_t>* ids);

}  // namespace taopd
