// Whole files: reading, and writing that leaves either the old or the new content, never half.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// NOT_FOUND when it cannot be opened; RESOURCE_EXHAUSTED above max_bytes. Messages name the path.
absl::StatusOr<std::string> ReadFileToString(const std::string& path,
                                             int64_t max_bytes = int64_t{1} << 30);

// Temporary name in the same directory, write, fsync, rename, fsync of the directory.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content);

// mkdir -p.
absl::Status MakeDirectories(const std::string& path);
// fsync of a directory, after renames in it.
absl::Status SyncDirectory(const std::string& path);
// Copies a file's content atomically.
absl::Status CopyFileAtomically(const std::string& from, const std::string& to);
bool FileExists(const std::string& path);
// File names (not paths) in a directory, sorted.
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);

}  // namespace taopd
