// The free slots of the KV cache. Acquire returns the lowest free slot, so that the same
// submissions use the same slots. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "common/base/check.h"

namespace taopd {

class SlotPool {
 public:
  explicit SlotPool(int64_t num_slots) : num_slots_(num_slots) {
    for (int64_t slot = 0; slot < num_slots; ++slot) free_.push(slot);
  }

  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // Takes a slot. REQUIRES: num_free() > 0.
  int64_t Acquire() {
    TAOPD_CHECK(!free_.empty());
    const int64_t slot = free_.top();
    free_.pop();
    return slot;
  }

  // Returns a slot. REQUIRES: `slot` came from Acquire and has not been released since.
  void Release(int64_t slot) {
    TAOPD_CHECK(slot >= 0 && slot < num_slots_ && num_free() < num_slots_);
    free_.push(slot);
  }

 private:
  const int64_t num_slots_;
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> free_;
};

}  // namespace taopd
