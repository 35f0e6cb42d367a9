// What one template may cost. A template comes with a model directory and is not trusted; real ones
// stay below a hundredth of each limit.
#pragma once

#include <cstdint>

namespace taopd::jinja {

inline constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;
// Parentheses, brackets, operators and statements inside each other.
inline constexpr int kMaxSyntaxDepth = 200;
inline constexpr int64_t kMaxOutputBytes = int64_t{64} << 20;
// Bytes of all the values that one rendering makes, freed or not.
inline constexpr int64_t kMaxAllocatedBytes = int64_t{512} << 20;
// Nodes evaluated, elements visited, and 64-byte pieces of text scanned.
inline constexpr int64_t kMaxSteps = 20'000'000;
// Evaluations inside each other, through macros too; about 1 KB of stack each.
inline constexpr int kMaxEvaluationDepth = 1000;
// Lists in lists.
inline constexpr int kMaxValueDepth = 200;
// As in jinja2's sandbox.
inline constexpr int64_t kMaxRange = 100'000;

}  // namespace taopd::jinja
