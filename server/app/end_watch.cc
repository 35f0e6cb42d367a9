#include "server/app/end_watch.h"

#include <cstdlib>
#include <string>

#include "common/base/exit_code.h"
#include "common/base/log.h"

namespace taopd {

EndWatch::~EndWatch() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void EndWatch::Start(absl::Duration timeout) {
  thread_ = std::thread([this, timeout] {
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&is_stopped_), timeout)) return;
    LogError("ending the process, which did not end by itself",
             {{"waits_for", std::string(waits_for_.load())},
              {"seconds", absl::ToDoubleSeconds(timeout)}});
    // Without destructors and without flushing streams: a thread that hangs may hold their locks.
    std::_Exit(kExitInternal);
  });
}

}  // namespace taopd
