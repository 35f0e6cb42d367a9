// The hashes of several pieces of memory, computed by several threads.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace taopd {

// Returns Sha256::HexDigest of each piece. Uses at most `max_threads` threads, this one included.
std::vector<std::string> Sha256OfAll(const std::vector<std::span<const std::byte>>& pieces,
                                     int max_threads);

}  // namespace taopd
