#include "kernels/torch/composed/visible_keys.h"

#include <algorithm>
#include <limits>

namespace taopd {

VisibleKeys KeysOfBlock(int64_t position, int64_t num_queries, int64_t sliding_window,
                        const at::TensorOptions& options) {
  VisibleKeys keys;
  if (sliding_window > 0) keys.first = std::max<int64_t>(0, position - sliding_window + 1);
  keys.length = position + num_queries - keys.first;
  const auto hidden = [&] {
    return at::full({num_queries, keys.length}, -std::numeric_limits<double>::infinity(), options);
  };
  const int64_t diagonal = position - keys.first;  // column minus row of a query's own key
  keys.mask_QL = hidden().triu_(diagonal + 1);
  if (sliding_window > 0 && keys.length > sliding_window) {
    keys.mask_QL.add_(hidden().tril_(diagonal - sliding_window));
  }
  return keys;
}

}  // namespace taopd
