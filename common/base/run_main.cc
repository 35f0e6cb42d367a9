#include "common/base/run_main.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

#include "common/base/exit_code.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace taopd {
namespace {

const char* name_of_program = "";

// Prints the message of the exception that is being handled. Returns its exit code.
int Report() {
  // LibTorch appends the stack, which is of no use to a user.
  constexpr std::string_view kStack = "\nException raised from ";
  try {
    throw;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: out of memory\n", name_of_program);
    return kExitOutOfMemory;
  } catch (const std::exception& error) {
    const std::string_view what = error.what();
    std::fprintf(stderr, "%s: unexpected error: %.*s\n", name_of_program,
                 static_cast<int>(what.substr(0, what.find(kStack)).size()), what.data());
  } catch (...) {
    std::fprintf(stderr, "%s: unexpected error: an exception of an unknown type\n",
                 name_of_program);
  }
  return kExitInternal;
}

[[noreturn]] void EndProcess() {
  // std::terminate is also called without an exception, for example for a thread that was not
  // joined.
  if (std::current_exception() == nullptr) std::abort();
  ::_exit(Report());
}

}  // namespace

int RunMain(const char* program, const std::function<int()>& main) {
  name_of_program = program;
  std::set_terminate(EndProcess);
  try {
    return main();
  } catch (...) {
    return Report();
  }
}

void LeaveProcess(int exit_code) {
  std::fflush(nullptr);
#ifdef __SANITIZE_ADDRESS__
  __lsan_do_leak_check();
#endif
  std::_Exit(exit_code);
}

}  // namespace taopd
