#include "kernels/cuda/head/vocabulary_sort.h"

#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/launch.h"

namespace taopd::cuda {

int64_t SortScratchBytes(int64_t num_entries) {
  size_t bytes = 0;
  // Without scratch memory, SortPairs only sets the size that it needs. The sort itself reports
  // errors.
  if (cub::DeviceRadixSort::SortPairs(nullptr, bytes, static_cast<const uint32_t*>(nullptr),
                                      static_cast<uint32_t*>(nullptr),
                                      static_cast<const int32_t*>(nullptr),
                                      static_cast<int32_t*>(nullptr), num_entries) != cudaSuccess) {
    return 0;
  }
  return static_cast<int64_t>(bytes);
}

std::string SortByVocabulary(const uint32_t* keys, const int32_t* entries, int64_t num_entries,
                             uint32_t* sorted_keys, int32_t* sorted_entries, void* scratch,
                             int64_t scratch_bytes, cudaStream_t stream) {
  size_t bytes = static_cast<size_t>(scratch_bytes);
  return ProblemOf(cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, sorted_keys, entries,
                                                   sorted_entries, num_entries, 0, 32, stream),
                   "sort by vocabulary");
}

}  // namespace taopd::cuda
