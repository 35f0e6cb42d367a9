// Tensors for which there is no memory.
#pragma once

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>
#include <new>

namespace taopd::testing {

// While it exists, the allocation of a tensor on the CPU fails, after `num_left` have succeeded.
class FailingTensors final : public c10::Allocator {
 public:
  explicit FailingTensors(int64_t num_left) : num_left_(num_left), real_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this, kPriority);
  }
  ~FailingTensors() override { c10::SetCPUAllocator(real_, kPriority); }
  c10::DataPtr allocate(size_t size_bytes) override {
    if (num_left_-- == 0) throw std::bad_alloc();
    return real_->allocate(size_bytes);
  }
  void copy_data(void* to, const void* from, size_t size_bytes) const override {
    default_copy_data(to, from, size_bytes);
  }

 private:
  static constexpr uint8_t kPriority = 1;  // above that of the allocator that is always there
  std::atomic<int64_t> num_left_;
  c10::Allocator* const real_;
};

}  // namespace taopd::testing
