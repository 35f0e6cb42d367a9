// The function through which the CPU kernels use threads: it runs a loop on them.
#pragma once

#include <cstdint>
#include <functional>

namespace taopd {

// Calls body(begin, end) for disjoint ranges that together are [0, num), and returns when all calls
// have returned. Calls may run at the same time. Each range has at least `grain` elements where
// possible. The results of the kernels do not depend on how the ranges are cut.
using ParallelFor = std::function<void(
    int64_t num, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body)>;

}  // namespace taopd
