// The checks and constants that the functions of taopd/attention/paged_attention_cuda.h share.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>

#include "taopd/attention/paged_attention_cuda.h"

namespace taopd::cuda {

// The number of queries of one block of threads (query heads times rows): as many as fit in its
// shared memory.
inline constexpr int kWideHeadSize = 256;
inline constexpr int kNarrowTileQueries = 16;  // D <= kWideHeadSize
inline constexpr int kWideTileQueries = 8;     // D <= kMaxHeadSize
constexpr int64_t TileQueries(int64_t head_size) {
  return head_size <= kWideHeadSize ? kNarrowTileQueries : kWideTileQueries;
}

// Returns the first problem with the pages or the number of query heads, or an empty string.
inline std::string PagesError(const PlainPages& pages, int64_t num_heads) {
  std::ostringstream problem;
  if (pages.head_size < 2 || pages.head_size > kMaxHeadSize || pages.head_size % 2 != 0) {
    problem << "head_size is " << pages.head_size << ", must be even and in [2, " << kMaxHeadSize
            << "]";
  } else if (pages.num_kv_heads < 1 || num_heads < 1 || num_heads % pages.num_kv_heads != 0) {
    problem << "num_heads is " << num_heads << ", must be a positive multiple of num_kv_heads "
            << pages.num_kv_heads;
  } else if (pages.keys_BKPD == nullptr || pages.values_BKPD == nullptr) {
    problem << "keys and values are needed";
  } else if (reinterpret_cast<uintptr_t>(pages.keys_BKPD) % 16 != 0 ||
             reinterpret_cast<uintptr_t>(pages.values_BKPD) % 16 != 0) {
    problem << "keys and values must be aligned to 16 bytes";
  }
  return problem.str();
}

}  // namespace taopd::cuda
