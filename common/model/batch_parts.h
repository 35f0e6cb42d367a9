// A batch cut into parts that threads can compute at the same time, each through all layers.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/decoder.h"

namespace taopd {

// The average part has at least this many rows, because each part reads the weights once more.
inline constexpr int64_t kRowsPerPart = 16;

// Cuts the batch between sequences into at most `num_parts` batches with about as many rows each,
// at least kRowsPerPart on average. Only the first part calls on_layer. The parts refer to the
// tensor and the block tables of `batch`. REQUIRES: batch.inputs is null. Pure function.
std::vector<PagedBatch> PartsOf(const PagedBatch& batch, int64_t num_parts);

}  // namespace taopd
