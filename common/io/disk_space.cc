#include "common/io/disk_space.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <filesystem>

namespace taopd {

namespace fs = std::filesystem;

namespace {

// Returns the part of the path that exists.
fs::path ExistingPartOf(const std::string& path) {
  std::error_code error;
  fs::path existing = fs::absolute(path, error);
  while (!existing.empty() && existing != existing.parent_path() && !fs::exists(existing, error)) {
    existing = existing.parent_path();
  }
  return existing;
}

}  // namespace

std::optional<int64_t> FreeDiskBytes(const std::string& path) {
  const fs::path existing = ExistingPartOf(path);
  struct statvfs info {};
  // Some network file systems report that they have no blocks at all.
  if (::statvfs(existing.c_str(), &info) != 0 || info.f_blocks == 0) return std::nullopt;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

bool AreOnOneDisk(const std::string& a, const std::string& b) {
  struct stat stat_a {
  }, stat_b{};
  if (::stat(ExistingPartOf(a).c_str(), &stat_a) != 0) return true;
  if (::stat(ExistingPartOf(b).c_str(), &stat_b) != 0) return true;
  return stat_a.st_dev == stat_b.st_dev;
}

int64_t BytesOnDisk(const std::string& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    const uint64_t size = fs::file_size(path, error);
    return error ? 0 : static_cast<int64_t>(size);
  }
  int64_t bytes = 0;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;  // the entry may vanish in the meantime
    if (!it->is_regular_file(gone)) continue;
    const uint64_t size = it->file_size(gone);
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

}  // namespace taopd
