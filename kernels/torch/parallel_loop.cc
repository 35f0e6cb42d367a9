#include "kernels/torch/parallel_loop.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace taopd {
namespace {

// A thread that starts late, or has the more expensive ranges, leaves some of its ranges to the
// others.
constexpr int64_t kRangesPerThread = 4;

// Returns the number of threads that ATen's operations use on the calling thread. Their first use
// on a thread sets this number, in ATen's library and, through inline functions of its headers, in
// this one. lazy_init_num_threads ensures that this has happened.
int AtenThreads() {
  at::internal::lazy_init_num_threads();
  return at::get_num_threads();
}

void SetAtenThreads(int num) {
#ifdef _OPENMP
  omp_set_num_threads(num);
#else
  (void)num;
#endif
}

void Pause() {
#ifdef __x86_64__
  _mm_pause();
#endif
}

// Returns the value of `word` once it is not `old`.
uint32_t WaitForChange(const std::atomic<uint32_t>& word, uint32_t old) {
  constexpr int kPauses = 32;  // about a microsecond
  const auto end = std::chrono::steady_clock::now() + kWaitAwake;
  do {
    for (int i = 0; i < kPauses; ++i) {
      const uint32_t now = word.load(std::memory_order_acquire);
      if (now != old) return now;
      Pause();
    }
    sched_yield();
  } while (std::chrono::steady_clock::now() < end);
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

// A thread and its workers.
class ThreadTeam {
 public:
  static constexpr int64_t kMaxThreads = 256;

  ~ThreadTeam() {
    Announce(0);
    for (std::thread& worker : workers_) worker.join();
  }

  // Calls `share` on this thread and on num_threads - 1 workers.
  void Run(int64_t num_threads, const std::function<void()>& share) {
    while (static_cast<int64_t>(workers_.size()) < num_threads - 1) {
      const auto own = static_cast<int64_t>(workers_.size()) + 1;
      workers_.emplace_back([this, own, seen = job_.load()] { Work(own, seen); });
    }
    share_ = &share;
    num_left_.store(static_cast<uint32_t>(num_threads - 1), std::memory_order_relaxed);
    Announce(static_cast<uint32_t>(num_threads));
    const int aten_threads = AtenThreads();
    SetAtenThreads(1);
    Call();
    SetAtenThreads(aten_threads);
    for (uint32_t left = num_left_.load(std::memory_order_acquire); left != 0;) {
      left = WaitForChange(num_left_, left);
    }
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  // The number of a job and, in the last bits, how many threads it is for; 0 threads tell the
  // workers to end. Both share a word, so that a worker that is not in a job, and for which no
  // thread waits, never reads a mix of two jobs.
  static constexpr uint32_t kThreadBits = 10;
  static constexpr uint32_t kThreads = (1u << kThreadBits) - 1;
  static_assert(kMaxThreads <= kThreads);

  void Announce(uint32_t num_threads) {
    const uint32_t number = (job_.load(std::memory_order_relaxed) >> kThreadBits) + 1;
    // Sequentially consistent: notify_all looks for waiting threads, and must not do so before the
    // store is visible to a thread that is about to wait.
    job_.store(number << kThreadBits | num_threads, std::memory_order_seq_cst);
    job_.notify_all();
  }

  void Call() {
    try {
      (*share_)();
    } catch (...) {
      const std::lock_guard lock(error_mutex_);
      error_ = std::current_exception();
    }
  }

  void Work(int64_t own, uint32_t seen) {
    AtenThreads();
    SetAtenThreads(1);
    for (;;) {
      seen = WaitForChange(job_, seen);
      const int64_t num_threads = seen & kThreads;
      if (num_threads == 0) return;
      if (own >= num_threads) continue;
      Call();
      if (num_left_.fetch_sub(1, std::memory_order_seq_cst) == 1) num_left_.notify_one();
    }
  }

  // One side writes these words and the other waits for them.
  alignas(64) std::atomic<uint32_t> job_{0};
  alignas(64) std::atomic<uint32_t> num_left_{0};
  const std::function<void()>* share_ = nullptr;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> workers_;
};

}  // namespace

int64_t NumAvailableThreads() {
  if (at::in_parallel_region()) return 1;
  // Inside a body of ParallelLoop this is 1, too.
  return std::min<int64_t>(AtenThreads(), ThreadTeam::kMaxThreads);
}

void ParallelLoop(int64_t num, int64_t grain,
                  const std::function<void(int64_t begin, int64_t end)>& body) {
  if (num <= 0) return;
  const int64_t most_ranges = std::max<int64_t>(num / std::max<int64_t>(grain, 1), 1);
  const int64_t num_threads = std::min(NumAvailableThreads(), most_ranges);
  if (num_threads == 1) return body(0, num);
  const int64_t num_ranges = std::min(num_threads * kRangesPerThread, most_ranges);
  std::atomic<int64_t> next{0};
  // On the heap: the workers read it at any time, whatever happens to this thread's own variables.
  thread_local const auto team = std::make_unique<ThreadTeam>();
  team->Run(num_threads, [&] {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < num_ranges;) {
      body(num * i / num_ranges, num * (i + 1) / num_ranges);
    }
  });
}

const ParallelFor& TorchParallelFor() {
  static const auto* const kParallelFor = new ParallelFor(ParallelLoop);
  return *kParallelFor;
}

}  // namespace taopd
