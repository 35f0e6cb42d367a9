#include "common/base/memory.h"

#include <absl/strings/str_format.h>
#include <malloc.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>

namespace taopd {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// Returns the process's control group of version 2, such as "/a/b", or "" if there is none.
std::string ControlGroup(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return "";
}

// Returns what the control group in `dir` still allows, or kUnknown if it has no limit.
int64_t GroupRestBytes(const std::string& dir) {
  const auto limit = NumberAfter(dir + "/memory.max", "");
  const auto current = NumberAfter(dir + "/memory.current", "");
  if (!limit || !current) return kUnknown;
  // Pages of tmpfs and shared memory are counted as page cache, but cannot be dropped.
  const int64_t page_cache = NumberAfter(dir + "/memory.stat", "file").value_or(0) -
                             NumberAfter(dir + "/memory.stat", "shmem").value_or(0);
  return std::max<int64_t>(0, *limit - *current + page_cache);
}

}  // namespace

std::optional<int64_t> NumberAfter(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream rest(line.substr(name.size()));
    const bool is_whole_name = name.empty() || rest.peek() == ' ' || rest.peek() == '\t';
    int64_t number = 0;
    if (is_whole_name && rest >> number) return number;
  }
  return std::nullopt;
}

int64_t AvailableMemoryBytes(const std::string& root) {
  int64_t available = kUnknown;
  if (const auto kib = NumberAfter(root + "/proc/meminfo", "MemAvailable:"))
    available = *kib * 1024;
  // In a container, the files of the process's own group may be out of sight.
  std::string group = ControlGroup(root);
  while (true) {
    available = std::min(available, GroupRestBytes(root + "/sys/fs/cgroup" + group));
    if (group.empty()) return available;
    group.resize(group.rfind('/'));
  }
}

int64_t AnonymousMemoryBytes(const std::string& root) {
  return NumberAfter(root + "/proc/self/status", "RssAnon:").value_or(0) * 1024;
}

void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, kMappedBlockBytes);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 16 << 20);
  // All threads share one heap, so that training can reuse memory that rollouts have freed.
  mallopt(M_ARENA_MAX, 1);
#endif
}

void ReturnFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, kReturnedBlockBytes);
#endif
}

absl::StatusOr<int64_t> ParseMemoryBytes(std::string_view text) {
  constexpr double kLimit = 4611686018427387904.0;  // 2^62
  static constexpr struct {
    std::string_view name;
    double bytes;
  } kUnits[] = {
      {"", 1},     {"B", 1},    {"KiB", 1024.0}, {"MiB", 1048576.0},    {"KB", 1e3},
      {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},    {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
  const auto refused = [&] {
    return InvalidArgument("\"", text, "\" is not a size such as 4294967296, 4GiB or 1.5GB");
  };
  const size_t num_digits = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0.0;
  const auto read =
      std::from_chars(text.data(), text.data() + num_digits, number, std::chars_format::fixed);
  if (read.ec != std::errc() || read.ptr != text.data() + num_digits) return refused();
  std::string_view unit = text.substr(num_digits);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& known : kUnits) {
    if (unit != known.name) continue;
    if (number * known.bytes >= kLimit) return refused();
    return static_cast<int64_t>(number * known.bytes);
  }
  return refused();
}

std::string MemoryText(int64_t bytes) {
  const double gib = static_cast<double>(bytes) / (int64_t{1} << 30);
  if (gib >= 0.1) return absl::StrFormat("%.1f GiB", gib);
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace taopd
