#include "common/memory/own_limits.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "common/base/memory.h"

namespace taopd {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Returns the first number after `name` at the beginning of a line; nullopt if there is none, as
// with "unlimited".
std::optional<int64_t> NumberBehind(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const size_t begin = std::min(line.find_first_not_of(" \t", name.size()), line.size());
    int64_t number = 0;
    const auto read = std::from_chars(line.data() + begin, line.data() + line.size(), number);
    return read.ec == std::errc() ? std::optional(number) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

int64_t LeftByOwnLimits(const std::string& root) {
  int64_t left = kNoLimit;
  for (const auto& [limit_name, size_name] :
       {std::pair{"Max data size", "VmData:"}, {"Max address space", "VmSize:"}}) {
    const auto limit = NumberBehind(root + "/proc/self/limits", limit_name);
    const auto size_kib = NumberBehind(root + "/proc/self/status", size_name);
    if (limit && size_kib) left = std::min(left, std::max<int64_t>(0, *limit - *size_kib * 1024));
  }
  return left;
}

MemoryBudget WithinOwnLimits(MemoryBudget budget, const std::string& root) {
  const int64_t left = LeftByOwnLimits(root);
  if (left == kNoLimit) return budget;
  const int64_t bytes = left + AnonymousMemoryBytes(root);
  const auto own = static_cast<int64_t>(kDefaultMemoryShare * static_cast<double>(bytes));
  if (own >= budget.limit_bytes) return budget;
  budget.limit_bytes = own;
  budget.source =
      Concat(kDefaultMemoryShare, " of the ", MemoryText(bytes), " that ulimit leaves it");
  return budget;
}

}  // namespace taopd
