// ATen's threads for kernels that take a ParallelFor.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

#include "taopd/base/parallel_for.h"

namespace taopd {

// How many threads a parallel_for has here: inside of another one it has its own thread alone.
inline int64_t ThreadsAtHand() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

inline const ParallelFor& AtenParallelFor() {
  static const auto* const kParallelFor = new ParallelFor(
      [](int64_t num, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
        at::parallel_for(0, num, grain, body);
      });
  return *kParallelFor;
}

}  // namespace taopd
