// Sorting the entries of a sparse gradient by vocabulary id.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

namespace taopd::cuda {

// Bytes of scratch that SortByVocabulary needs for so many entries.
int64_t SortScratchBytes(int64_t num_entries);

// Stable, by rising key. All pointers are device memory; outputs differ from inputs.
std::string SortByVocabulary(const uint32_t* keys, const int32_t* entries, int64_t num_entries,
                             uint32_t* sorted_keys, int32_t* sorted_entries, void* scratch,
                             int64_t scratch_bytes, cudaStream_t stream);

}  // namespace taopd::cuda
