// A sum whose bits do not depend on who computes which part of it.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace taopd {

// Adds the terms pairwise, level by level: (0 + 1) + (2 + 3), and so on; a term without a partner
// goes up as it is. The result is terms[0], which is overwritten, as are others of them. All have
// one shape and type. If the terms are the results of this function over equally many neighbours
// each, a power of two of them, the result is that over all of their terms, bit for bit.
// REQUIRES: there is at least one term.
at::Tensor SumTree(std::vector<at::Tensor> terms);

}  // namespace taopd
