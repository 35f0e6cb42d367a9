#include "common/dist/tree_sum.h"

#include <utility>

#include "common/base/check.h"
#include "common/dist/process_group.h"

namespace taopd {

at::Tensor SumTree(std::vector<at::Tensor> terms) {
  TAOPD_CHECK(!terms.empty());
  const at::NoGradGuard no_grad;
  for (size_t step = 1; step < terms.size(); step *= 2) {
    for (size_t i = 0; i + step < terms.size(); i += 2 * step) terms[i].add_(terms[i + step]);
  }
  return terms[0];
}

absl::Status ProcessGroup::AllReduceTree(const at::Tensor& tensor) {
  if (world_size() == 1) return absl::OkStatus();
  const at::Tensor flat = tensor.view({-1});
  const int64_t share = (flat.numel() + world_size() - 1) / world_size();
  const at::Tensor padded = at::zeros({share * world_size()}, flat.options());
  padded.narrow(0, 0, flat.numel()).copy_(flat);
  const at::Tensor parts = at::empty({world_size(), share}, flat.options());
  TAOPD_RETURN_IF_ERROR(AllToAll(parts, padded));
  TAOPD_RETURN_IF_ERROR(AllGather(padded, SumTree(parts.unbind())));
  flat.copy_(padded.narrow(0, 0, flat.numel()));
  return absl::OkStatus();
}

}  // namespace taopd
