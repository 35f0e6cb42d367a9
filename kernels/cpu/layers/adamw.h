// taopd/layers/adamw.h on the CPU. The functions return when the work is done; they get their
// threads from the ParallelFor. Any thread may call them; calls with different outputs may overlap.
#pragma once

#include <vector>

#include "taopd/base/parallel_for.h"
#include "taopd/layers/adamw.h"

namespace taopd::cpu {

// Applies one update to all parameters. REQUIRES: NumberBlocks has set the tensors' first_block.
void AdamW(const AdamWSettings& settings, const std::vector<AdamWTensor>& tensors,
           const ParallelFor& parallel_for);
// Returns the sum of the squares of all elements of the gradients; blocks are added in float64. It
// is NaN or infinite if an element is. REQUIRES: as for AdamW.
double SumOfSquares(const std::vector<AdamWTensor>& tensors, const ParallelFor& parallel_for);

}  // namespace taopd::cpu
