// A ParallelFor without threads.
#pragma once

#include <cstdint>
#include <functional>

namespace taopd::testing {

inline void OneThread(int64_t num, int64_t, const std::function<void(int64_t, int64_t)>& body) {
  if (num > 0) body(0, num);
}

}  // namespace taopd::testing
