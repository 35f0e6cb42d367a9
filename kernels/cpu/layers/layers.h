// taopd/layers/layers.h and taopd/layers/adamw.h on the CPU. Any thread; threads come from the
// ParallelFor given.
#pragma once

#include <vector>

#include "taopd/base/parallel_for.h"
#include "taopd/layers/adamw.h"
#include "taopd/layers/layers.h"

namespace taopd::cpu {

void Run(const RmsNormForward& problem, const ParallelFor& parallel_for);
void Run(const RmsNormBackward& problem, const ParallelFor& parallel_for);
void Run(const HeadsForward& problem, const ParallelFor& parallel_for);
void Run(const HeadsBackward& problem, const ParallelFor& parallel_for);
void Run(const SwiGluForward& problem, const ParallelFor& parallel_for);
void Run(const SwiGluBackward& problem, const ParallelFor& parallel_for);

// REQUIRES for both: the tensors' first_block is set (NumberBlocks).
void AdamW(const AdamWSettings& settings, const std::vector<AdamWTensor>& tensors,
           const ParallelFor& parallel_for);
// Of all gradients together, in float64 between blocks. NaN or infinite where an element is.
double SumOfSquares(const std::vector<AdamWTensor>& tensors, const ParallelFor& parallel_for);

}  // namespace taopd::cpu
