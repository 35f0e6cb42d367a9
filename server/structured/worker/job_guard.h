// What a thread works on, so that the process's last word (wire.h) can say which form ended it: one
// that takes more time of a processor than it may, or one that crashes the library.
#pragma once

#include <cstdint>

namespace taopd {

// Installs the handlers of signals; once, before any other thread is made.
void CatchCrashes();

// One for each thread that works, made on it before the sandbox is entered.
class JobGuard {
 public:
  JobGuard();
  JobGuard(const JobGuard&) = delete;
  JobGuard& operator=(const JobGuard&) = delete;

  // From now on this thread works on the form, or on the text under it, and the process ends after
  // so many milliseconds of a processor.
  void Begin(uint64_t form, uint64_t text, int64_t cpu_limit_ms);
  // Returns the milliseconds since Begin.
  double End();
  double ElapsedMs() const;

 private:
  void SetTimer(int64_t ms);

  void* timer_ = nullptr;  // timer_t
  double begun_ms_ = 0.0;
};

}  // namespace taopd
