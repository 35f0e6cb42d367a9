#include "common/base/memory.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace taopd {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// The number after the line's first word `name`; nullopt where there is none.
std::optional<int64_t> NumberOf(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word && word == name && words >> number) return number;
  }
  return std::nullopt;
}

std::optional<int64_t> OnlyNumberOf(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number)) return std::nullopt;  // absent, or "max"
  return number;
}

}  // namespace

int64_t AvailableMemoryBytes(const std::string& root) {
  int64_t available = kUnknown;
  if (const auto kib = NumberOf(root + "/proc/meminfo", "MemAvailable:")) available = *kib * 1024;
  const std::string group = root + "/sys/fs/cgroup/";
  const auto limit = OnlyNumberOf(group + "memory.max");
  const auto current = OnlyNumberOf(group + "memory.current");
  if (limit && current) {
    const int64_t page_cache = NumberOf(group + "memory.stat", "file").value_or(0);
    available = std::min(available, std::max<int64_t>(0, *limit - *current + page_cache));
  }
  return available;
}

std::string MemoryText(int64_t bytes) {
  char text[64];
  const double gib = static_cast<double>(bytes) / (int64_t{1} << 30);
  if (gib >= 0.1) {
    std::snprintf(text, sizeof(text), "%.1f GiB", gib);
  } else {
    std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  }
  return text;
}

}  // namespace taopd
