// Sizes of memory: how much this process may still take, units, and sizes as text. All functions
// are thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace taopd {

// Bytes of a size that a setting gives in MiB (2^20 bytes) or GiB (2^30 bytes), rounded down.
constexpr int64_t BytesOfMib(double mib) { return static_cast<int64_t>(mib * (int64_t{1} << 20)); }
constexpr int64_t BytesOfGib(double gib) { return static_cast<int64_t>(gib * (int64_t{1} << 30)); }

// The smaller of two sizes:
//   what the machine has available: MemAvailable of /proc/meminfo, which is free memory and page
//     cache that can be dropped
//   what the control group still allows: memory.max less memory.current, plus its page cache
// Returns INT64_MAX if neither is known. `root` is put in front of the paths, for tests.
int64_t AvailableMemoryBytes(const std::string& root = "");

// The memory that this process holds and that no file backs (RssAnon of /proc/self/status). Returns
// 0 if it is not known. `root` as above.
int64_t AnonymousMemoryBytes(const std::string& root = "");

// What the C library does with freed memory. Blocks of at least kMappedBlockBytes are always
// returned to the system. Neither function does anything with other C libraries than GNU's.
//
// KeepFreedMemory: smaller blocks stay in one heap for all threads, which keeps up to 256 MiB at
// its end: steps of training and of inference free and allocate the same tensors again and again,
// and memory that was returned comes back as pages that the system must clear first. For main, before
// any threads start. The teacher returns what requests have left by itself
// (server/serving/heap_trim.h).
//
// ReturnFreedMemory, afterwards: blocks of at least kReturnedBlockBytes are returned, too. Takes
// more time, and less memory where tensors of many sizes come and go: the heap's holes seldom fit
// the next one.
inline constexpr int64_t kMappedBlockBytes = int64_t{32} << 20;  // the most that the library takes
inline constexpr int64_t kReturnedBlockBytes = int64_t{1} << 20;
void KeepFreedMemory();
void ReturnFreedMemory();

// Reads a size: a number that is not negative, with or without a unit: "4294967296", "4GiB".
// Units are B, KiB, MiB, GiB and TiB (powers of 1024), and KB, MB, GB and TB (powers of 1000).
// Fractions of a byte are dropped. Returns INVALID_ARGUMENT, with the text, for anything else and
// for 2^62 bytes or more.
absl::StatusOr<int64_t> ParseMemoryBytes(std::string_view text);

// A size for people: "1.5 GiB", or "5.0 MiB" below 0.1 GiB.
std::string MemoryText(int64_t bytes);

}  // namespace taopd
