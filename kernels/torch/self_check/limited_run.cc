#include "kernels/torch/self_check/limited_run.h"

#include <chrono>
#include <future>
#include <thread>
#include <utility>

namespace taopd {

bool RunWithLimit(double limit_s, std::function<void()> work) {
  std::packaged_task<void()> task(std::move(work));
  std::future<void> done = task.get_future();
  std::thread thread(std::move(task));
  if (done.wait_for(std::chrono::duration<double>(limit_s)) != std::future_status::ready) {
    thread.detach();
    return false;
  }
  thread.join();
  done.get();
  return true;
}

}  // namespace taopd
