// ATen's threads for kernels that take a ParallelFor.
#pragma once

#include <ATen/Parallel.h>

#include "taopd/base/parallel_for.h"

namespace taopd {

inline const ParallelFor& AtenParallelFor() {
  static const auto* const kParallelFor = new ParallelFor(
      [](int64_t num, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
        at::parallel_for(0, num, grain, body);
      });
  return *kParallelFor;
}

}  // namespace taopd
