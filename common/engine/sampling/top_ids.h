// Finds the largest logits of a row without sorting it. The maxima of WeightRow::max
// (kernels/cpu/math/weight_row.h) tell where to look.
//
// Shapes: V vocabulary size, L the number of lane maxima.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace taopd {

// Returns the largest finite t with low <= t < high and reaches(t); returns `low` if there is none.
// `reaches` is true up to some number and false beyond it.
float LargestThreshold(float low, float high, const std::function<bool(float)>& reaches);

// The next float above. REQUIRES: value is finite.
float NextAbove(float value);
// A float about halfway between two finite ones, counted in floats; `low` if they are neighbors.
float MiddleFloat(float low, float high);

// Returns a number that at least `count` logits reach, namely the count-th largest lane maximum, or
// -inf if there are not as many finite ones.
float BoundOfTop(std::span<const float> lane_max_L, int64_t count);

// Sets ids to those of the finite logits of at least `bound`, in no particular order. Returns false
// if there are more than `limit`.
bool CollectAtLeast(std::span<const float> logits_V, std::span<const float> lane_max_L, float bound,
                    size_t limit, std::vector<int32_t>* ids);

// Sorts ids in descending order of logit; ties go to the lower id.
void SortByLogit(std::span<const float> logits_V, std::vector<int32_t>* ids);

// Sets ids to those of the `count` largest logits, sorted by SortByLogit. REQUIRES: count <= V.
void TopIds(std::span<const float> logits_V, std::span<const float> lane_max_L, int64_t count,
            std::vector<int32_t>* ids);

}  // namespace taopd
