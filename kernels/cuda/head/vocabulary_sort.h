// The sort of the entries of a sparse gradient by vocabulary id.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

namespace taopd::cuda {

// Returns the bytes of scratch memory that SortByVocabulary needs for num_entries entries.
int64_t SortScratchBytes(int64_t num_entries);

// Enqueues a stable sort in ascending order of the keys. All pointers are device memory; the
// outputs must not be the inputs. Returns an empty string or the error.
std::string SortByVocabulary(const uint32_t* keys, const int32_t* entries, int64_t num_entries,
                             uint32_t* sorted_keys, int32_t* sorted_entries, void* scratch,
                             int64_t scratch_bytes, cudaStream_t stream);

}  // namespace taopd::cuda
