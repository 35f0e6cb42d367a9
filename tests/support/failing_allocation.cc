// Preloaded into a program (LD_PRELOAD), lets one allocation of a tensor fail: LibTorch takes the
// memory of tensors on a CPU from posix_memalign.
//
// TAOPD_FAILING_ALLOCATION is the number of the call that fails, from 1; 0 for none. The number of
// calls goes to the file TAOPD_ALLOCATIONS_PATH, if it is set, when the program ends, by _Exit too.
#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace {

std::atomic<long> num_calls = 0;

long FailingCall() {
  const char* text = std::getenv("TAOPD_FAILING_ALLOCATION");
  return text != nullptr ? std::atol(text) : 0;
}

__attribute__((destructor)) void WriteNumCalls() {
  const char* path = std::getenv("TAOPD_ALLOCATIONS_PATH");
  std::FILE* file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) return;
  std::fprintf(file, "%ld\n", num_calls.load());
  std::fclose(file);
}

}  // namespace

extern "C" int posix_memalign(void** memory, size_t alignment, size_t size) {
  static auto* const real =
      reinterpret_cast<int (*)(void**, size_t, size_t)>(dlsym(RTLD_NEXT, "posix_memalign"));
  static const long failing_call = FailingCall();
  if (++num_calls == failing_call) return ENOMEM;
  return real(memory, alignment, size);
}

extern "C" void _Exit(int code) {
  static auto* const real = reinterpret_cast<void (*)(int)>(dlsym(RTLD_NEXT, "_Exit"));
  WriteNumCalls();
  real(code);
  std::abort();  // not reached
}
