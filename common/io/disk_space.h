// What a disk has room for, and what a directory takes there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace taopd {

// The bytes that this process may still write to the file system of `path`, whose last parts need
// not exist yet. nullopt if the file system does not tell. Quotas are not seen.
std::optional<int64_t> FreeDiskBytes(const std::string& path);

// The bytes of all regular files below `path`, or of the file itself; 0 if there is none.
int64_t BytesOnDisk(const std::string& path);

}  // namespace taopd
