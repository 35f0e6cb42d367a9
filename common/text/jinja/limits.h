// Limits on the cost of a single template. A template comes with a model directory and is not
// trusted. Real templates stay below a hundredth of each limit.
#pragma once

#include <cstdint>

namespace taopd::jinja {

inline constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;
// Nested parentheses, brackets, operators, statements and branches: an elif is in the else of the
// branch before it.
inline constexpr int kMaxSyntaxDepth = 200;
inline constexpr int64_t kMaxOutputBytes = int64_t{64} << 20;
// The bytes of all values that one rendering makes, including those that are freed.
inline constexpr int64_t kMaxAllocatedBytes = int64_t{512} << 20;
// Nodes evaluated, elements visited, and 64-byte pieces of text scanned.
inline constexpr int64_t kMaxSteps = 20'000'000;
// Nested evaluations, including those through macros. Each takes about 1 KB of stack.
inline constexpr int kMaxEvaluationDepth = 1000;
// Nested lists and dicts.
inline constexpr int kMaxValueDepth = 200;
// The parts into which a text is split, each of which is a value afterwards.
inline constexpr int64_t kMaxParts = 4'000'000;
// The length of a range(), as in jinja2's sandbox.
inline constexpr int64_t kMaxRange = 100'000;

}  // namespace taopd::jinja
