#include "server/app/end_watch.h"

#include <cstdlib>
#include <string>

#include "common/base/exit_code.h"
#include "common/base/log.h"

namespace taopd {

void EndWatch::Start(absl::Duration timeout) {
  thread_ = std::jthread([this, timeout] {
    if (stopped_.WaitForNotificationWithTimeout(timeout)) return;
    LogError("ending the process, which did not end by itself",
             {{"waits_for", std::string(waits_for_.load())},
              {"seconds", absl::ToDoubleSeconds(timeout)}});
    // Without destructors and without flushing streams: a thread that hangs may hold their locks.
    std::_Exit(kExitInternal);
  });
}

}  // namespace taopd
