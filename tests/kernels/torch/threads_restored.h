// LibTorch's number of threads, which tests change.
#pragma once

#include <ATen/Parallel.h>

namespace taopd::testing {

// Restores the number of threads at the end of a test.
class ThreadsRestored {
 public:
  ThreadsRestored() = default;
  // Sets another number until then.
  explicit ThreadsRestored(int num_threads) { at::set_num_threads(num_threads); }
  ~ThreadsRestored() { at::set_num_threads(before_); }
  ThreadsRestored(const ThreadsRestored&) = delete;
  ThreadsRestored& operator=(const ThreadsRestored&) = delete;

 private:
  const int before_ = at::get_num_threads();
};

}  // namespace taopd::testing
