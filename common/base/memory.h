// Sizes of memory: how much this process may still take, units, and sizes as text. All functions
// are thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

// These functions return the bytes of a setting in MiB (2^20 bytes) or GiB (2^30 bytes), rounded
// down.
constexpr int64_t BytesOfMib(double mib) { return static_cast<int64_t>(mib * (int64_t{1} << 20)); }
constexpr int64_t BytesOfGib(double gib) { return static_cast<int64_t>(gib * (int64_t{1} << 30)); }

// Returns the number that follows `name` at the beginning of a line of a file such as
// /proc/meminfo; with an empty name, the number with which a line begins. Returns nullopt if there
// is none, as with "unlimited" and "max".
std::optional<int64_t> NumberAfter(const std::string& path, const std::string& name);

// Returns the smaller of two sizes:
//   - the memory that the machine has available: MemAvailable of /proc/meminfo, which is free
//     memory and page cache that can be dropped
//   - the least that the process's control group and those above it (version 2) still allow:
//     memory.max minus memory.current, plus the page cache that can be dropped
// Returns INT64_MAX if neither is known. `root` is prepended to the paths, for tests.
int64_t AvailableMemoryBytes(const std::string& root = "");

// Returns the memory of this process that no file backs (RssAnon of /proc/self/status), or 0 if it
// is unknown. `root` as above.
int64_t AnonymousMemoryBytes(const std::string& root = "");

// These functions set how the C library treats freed memory. Blocks of at least kMappedBlockBytes
// are always returned to the system. The functions have no effect with C libraries other than
// GNU's.
//
// With KeepFreedMemory, smaller blocks stay in one heap for all threads, which keeps up to 256 MiB
// at its end. Steps of training and of inference free and allocate the same tensors repeatedly, and
// memory that was returned comes back as pages that the system must clear first. Call it from main,
// before any threads start. The teacher itself returns what requests have left
// (server/serving/heap_trim.h).
//
// After ReturnFreedMemory, blocks of at least kReturnedBlockBytes are returned, too. This takes
// more time, but less memory if tensors of many sizes come and go, because the next tensor seldom
// fits a hole in the heap.
inline constexpr int64_t kMappedBlockBytes = int64_t{32} << 20;  // the library's limit
inline constexpr int64_t kReturnedBlockBytes = int64_t{1} << 20;
void KeepFreedMemory();
void ReturnFreedMemory();

// Parses a size: a non-negative number with or without a unit, such as "4294967296" or "4GiB".
// Units are B, KiB, MiB, GiB and TiB (powers of 1024), and KB, MB, GB and TB (powers of 1000).
// Fractions of a byte are dropped. Returns INVALID_ARGUMENT with the text for anything else and for
// 2^62 bytes or more.
absl::StatusOr<int64_t> ParseMemoryBytes(std::string_view text);

// Returns a size as text for people: "1.5 GiB", or "5.0 MiB" below 0.1 GiB.
std::string MemoryText(int64_t bytes);

}  // namespace taopd
