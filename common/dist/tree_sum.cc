#include "common/dist/tree_sum.h"

#include "common/base/check.h"

namespace taopd {

at::Tensor SumTree(std::vector<at::Tensor> terms) {
  TAOPD_CHECK(!terms.empty());
  const at::NoGradGuard no_grad;
  for (size_t step = 1; step < terms.size(); step *= 2) {
    for (size_t i = 0; i + step < terms.size(); i += 2 * step) terms[i].add_(terms[i + step]);
  }
  return terms[0];
}

}  // namespace taopd
