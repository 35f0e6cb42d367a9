// Threads, as the CPU kernels are given them.
#pragma once

#include <cstdint>
#include <functional>

namespace taopd {

// Calls body(begin, end) for disjoint ranges that together are [0, num), any number of them at the
// same time and each at least `grain` long where that is possible; returns when all are done. What
// the kernels compute does not depend on how it cuts.
using ParallelFor = std::function<void(
    int64_t num, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body)>;

}  // namespace taopd
