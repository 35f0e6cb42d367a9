// How much memory this process may still take.
#pragma once

#include <cstdint>
#include <string>

namespace taopd {

// The smaller of what the machine has available (MemAvailable of /proc/meminfo: free memory and
// page cache that can be dropped) and what the control group still allows (memory.max less
// memory.current, plus its page cache). INT64_MAX where neither says anything. `root` is put in
// front of the paths, for tests.
int64_t AvailableMemoryBytes(const std::string& root = "");

// "1.5 GiB".
std::string MemoryText(int64_t bytes);

}  // namespace taopd
