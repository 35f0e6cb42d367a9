// Whole files and directories. A file that these functions write has either its old or its new
// content at any time, never a part of one. All functions are thread-safe, and all error messages
// name the path.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// Returns NOT_FOUND if there is no such file, RESOURCE_EXHAUSTED if it has more than max_bytes, and
// the code of FileError (atomic_file.h) for any other failure.
absl::StatusOr<std::string> ReadFileToString(const std::string& path,
                                             int64_t max_bytes = int64_t{1} << 30);
// Calls `piece` with the parts of a file in order, until it returns an error, which is returned.
// Returns the code of FileError if reading fails. An empty file has no parts.
absl::Status ReadInPieces(const std::string& path,
                          const std::function<absl::Status(std::string_view bytes)>& piece);

// Writes through an AtomicFile.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content);

// Creates a directory and its missing parents.
absl::Status MakeDirectories(const std::string& path);
// Fills a new directory with `write` and renames it to `path`, replacing an old directory there.
// `path` is absent between two renames; if the second one fails, the old directory is put back. A
// crash may leave PATH.new and PATH.old beside `path` or instead of it; the next call removes them.
absl::Status ReplaceDirectory(const std::string& path,
                              const std::function<absl::Status(const std::string& dir)>& write);
// Removes a file, or a directory with all that is in it. It need not exist. A failure may leave a
// part of a directory.
absl::Status RemoveAll(const std::string& path);
// Renames as rename(2) does. Needs SyncDirectory to be durable.
absl::Status RenamePath(const std::string& from, const std::string& to);
// Makes earlier renames in a directory durable (fsync).
absl::Status SyncDirectory(const std::string& path);
bool FileExists(const std::string& path);
// Returns the names (not paths) of a directory's entries, sorted.
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);

}  // namespace taopd
