#include "common/base/thread_waits.h"

#include <absl/synchronization/mutex.h>
#include <unistd.h>

#include <cstdlib>

namespace taopd {

void RestartWithShortThreadWaits(char** argv) {
  static constexpr char kName[] = "GOMP_SPINCOUNT";
  if (std::getenv(kName) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (setenv(kName, "1000", 1) != 0) return;
  execv("/proc/self/exe", argv);
  unsetenv(kName);  // libgomp keeps its default here, so children must not believe otherwise
}

void StopLookingForLockCycles() {
#ifdef NDEBUG
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

}  // namespace taopd
