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

absl::Status AllReduceTree(ProcessGroup& group, const at::Tensor& tensor) {
  const int64_t num_ranks = group.world_size();
  if (num_ranks == 1) return absl::OkStatus();
  const at::Tensor flat = tensor.view({-1});
  const int64_t share = (flat.numel() + num_ranks - 1) / num_ranks;
  const at::Tensor padded = at::zeros({share * num_ranks}, flat.options());
  padded.narrow(0, 0, flat.numel()).copy_(flat);
  const at::Tensor parts = at::empty({num_ranks, share}, flat.options());
  TAOPD_RETURN_IF_ERROR(group.AllToAll(parts, padded));
  TAOPD_RETURN_IF_ERROR(group.AllGather(padded, SumTree(parts.unbind())));
  flat.copy_(padded.narrow(0, 0, flat.numel()));
  return absl::OkStatus();
}

}  // namespace taopd
