// taopd/layers/norms_and_swiglu.h on the CPU. The functions return when the work is done; they get
// their threads from the ParallelFor. Any thread may call them; calls with different outputs may
// overlap.
#pragma once

#include "taopd/base/parallel_for.h"
#include "taopd/layers/norms_and_swiglu.h"

namespace taopd::cpu {

void Run(const RmsNormForward& problem, const ParallelFor& parallel_for);
void Run(const RmsNormBackward& problem, const ParallelFor& parallel_for);
void Run(const HeadsForward& problem, const ParallelFor& parallel_for);
void Run(const HeadsBackward& problem, const ParallelFor& parallel_for);
void Run(const SwiGluForward& problem, const ParallelFor& parallel_for);
void Run(const SwiGluBackward& problem, const ParallelFor& parallel_for);

}  // namespace taopd::cpu
