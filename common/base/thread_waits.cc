#include "common/base/thread_waits.h"

#include <absl/synchronization/mutex.h>
#include <unistd.h>

#include <cstddef>

namespace taopd {
namespace {

// No library is initialized when the dynamic linker calls RestartWithShortThreadWaits, neither the
// C library nor those of the sanitizers.
__attribute__((no_sanitize("address", "thread", "undefined"))) bool StartsWith(const char* text,
                                                                               const char* prefix) {
  for (; *prefix != '\0'; ++text, ++prefix) {
    if (*text != *prefix) return false;
  }
  return true;
}

}  // namespace

__attribute__((no_sanitize("address", "thread", "undefined"))) void RestartWithShortThreadWaits(
    int, char** argv, char** environment) {
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (StartsWith(environment[count], "GOMP_SPINCOUNT=")) return;
    if (StartsWith(environment[count], "OMP_WAIT_POLICY=")) return;
  }
  static char spin_count[] = "GOMP_SPINCOUNT=1000";
  auto** longer = static_cast<char**>(__builtin_alloca((count + 2) * sizeof(char*)));
  for (size_t i = 0; i < count; ++i) longer[i] = environment[i];
  longer[count] = spin_count;
  longer[count + 1] = nullptr;
  execve("/proc/self/exe", argv, longer);
}

void StopLookingForLockCycles() {
#ifdef NDEBUG
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

}  // namespace taopd
