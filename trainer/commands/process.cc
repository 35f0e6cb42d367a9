#include "trainer/commands/process.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <new>
#include <thread>

namespace taopd {

void SetNumThreads(int64_t num_threads) {
  if (num_threads == 0) num_threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(num_threads));
}

std::optional<CommandFailure> CatchExceptions(
    const std::function<std::optional<CommandFailure>()>& command) {
  try {
    return command();
  } catch (const c10::Error& error) {
    return CommandFailure{kExitInternal, Internal(error.what_without_backtrace())};
  } catch (const std::bad_alloc&) {
    return CommandFailure{kExitInternal, ResourceExhausted("out of memory")};
  }
}

}  // namespace taopd
