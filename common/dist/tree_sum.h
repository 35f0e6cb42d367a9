// Sums whose bits do not depend on how their terms are divided among ranks.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "common/dist/process_group.h"

namespace taopd {

// Adds the terms pairwise, level by level: (0 + 1) + (2 + 3), and so on; a term without a partner
// moves up unchanged. If the terms are results of this function over an equal number of neighbors
// each, and that number is a power of two, the result is that over all of their terms.
//
// All terms have one shape and type. The result is terms[0], which is overwritten, as are some
// other terms. REQUIRES: there is at least one term.
at::Tensor SumTree(std::vector<at::Tensor> terms);

// Sums as ProcessGroup::AllReduce with kSum does, but with SumTree: a number's sum does not depend
// on where in the tensor it stands, as it does with Gloo's ring. Needs memory for three more
// tensors.
absl::Status AllReduceTree(ProcessGroup& group, const at::Tensor& tensor);

}  // namespace taopd
