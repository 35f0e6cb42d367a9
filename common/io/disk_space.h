// The free space of a disk, and the size of a directory on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace taopd {

// Returns the bytes that this process may still write to the file system of `path`, whose last
// parts need not exist yet. Returns nullopt if the file system does not report it. Quotas are not
// considered.
std::optional<int64_t> FreeDiskBytes(const std::string& path);

// Returns whether both paths, whose last parts need not exist yet, are on one file system. Returns
// true if the system does not tell.
bool AreOnOneDisk(const std::string& a, const std::string& b);

// Returns the bytes of all regular files below `path`, or of the file itself; 0 if there is none.
int64_t BytesOnDisk(const std::string& path);

}  // namespace taopd
