// A sum whose bits do not depend on how its parts are divided among ranks.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace taopd {

// Adds the terms pairwise, level by level: (0 + 1) + (2 + 3), and so on; a term without a partner
// moves up unchanged. All terms have one shape and type. The result is terms[0], which is
// overwritten, as are some other terms. If the terms are the results of this function over an equal
// number of neighbours each, and that number is a power of two, the result is that over all of
// their terms, bit for bit.
// REQUIRES: there is at least one term.
at::Tensor SumTree(std::vector<at::Tensor> terms);

}  // namespace taopd
