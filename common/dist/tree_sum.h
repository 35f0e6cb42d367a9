// Sums whose bits do not depend on how their terms are divided among ranks.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "common/dist/process_group.h"

namespace taopd {

// Adds the terms pairwise, level by level: (0 + 1) + (2 + 3), and so on; a term without a partner
// moves up unchanged. If each term is itself the result of this function over the same number of
// neighboring terms, a power of two, the result equals that of one call with all of those terms.
//
// All terms have one shape and type. The result is terms[0], which is overwritten, as are some
// other terms. REQUIRES: there is at least one term.
at::Tensor SumTree(std::vector<at::Tensor> terms);

// Like ProcessGroup::AllReduce with kSum, but sums with SumTree. A number's sum therefore does not
// depend on its place in the tensor; with Gloo's ring it does. Needs memory for three more tensors.
absl::Status AllReduceTree(ProcessGroup& group, const at::Tensor& tensor);

}  // namespace taopd
