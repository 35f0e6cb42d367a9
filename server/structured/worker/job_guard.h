// Records what a thread works on, so that the process's crash report (wire.h) can name the grammar
// that ended it by exceeding its processor time or by crashing the library.
#pragma once

#include <cstdint>

namespace taopd {

// Installs the signal handlers. Call it once, before any other thread starts.
void CatchCrashes();

// Each working thread has one. It is made on that thread, before the sandbox is entered.
class JobGuard {
 public:
  JobGuard();
  JobGuard(const JobGuard&) = delete;
  JobGuard& operator=(const JobGuard&) = delete;

  // Records that this thread works on the grammar, or on a text that must match it. The process
  // ends when that takes more than cpu_limit_ms of the thread's processor time.
  void Begin(uint64_t grammar, uint64_t text, int64_t cpu_limit_ms);
  // Returns the thread's processor time since Begin, in milliseconds.
  double End();
  double ElapsedMs() const;

 private:
  void SetTimer(int64_t ms);

  void* timer_ = nullptr;  // timer_t
  double begun_ms_ = 0.0;
};

}  // namespace taopd
