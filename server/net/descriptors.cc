#include "server/net/descriptors.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

namespace taopd {
namespace {

constexpr int64_t kReserve = 16;
constexpr int64_t kMinConnections = 4;

int64_t MaxDescriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  return static_cast<int64_t>(
      std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int32_t>::max()));
}

int64_t NumOpen() {
  std::error_code error;
  int64_t count = 0;
  for (auto it = std::filesystem::directory_iterator("/proc/self/fd", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++count;
  }
  return count;
}

}  // namespace

int MaxHttpConnections() {
  return static_cast<int>(std::max(kMinConnections, (MaxDescriptors() - NumOpen() - kReserve) / 2));
}

bool IsScarce(int fd, int num_kept) { return fd >= MaxDescriptors() - kReserve / 2 - num_kept; }

int DescriptorsLeftToHttp() {
  return static_cast<int>(std::min<int64_t>(64, MaxDescriptors() / 4));
}

}  // namespace taopd
