#include "common/engine/parallel/group_collectives.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "common/dist/tree_sum.h"

namespace taopd {
namespace {

void ThrowIfError(const absl::Status& status) {
  TORCH_CHECK(status.ok(), "tensor parallel: ", std::string(status.message()));
}

}  // namespace

void GroupCollectives::AllReduceSum(at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  // Gloo's ring adds the ranks in an order that depends on the place in the buffer, and so on the
  // rest of the batch. With two ranks there is only one order.
  const bool in_order = tensor.is_cpu() && place_.size > 2;
  ThrowIfError(in_order ? AllReduceTree(*group_, tensor)
                        : group_->AllReduce(tensor, Reduction::kSum));
}

void GroupCollectives::Broadcast(at::Tensor& tensor) {
  if (tensor.numel() > 0) ThrowIfError(group_->Broadcast(tensor, /*root=*/0));
}

// Gathers the tensors to all ranks, padded to the widest, because c10d's gather requires equal
// sizes.
std::vector<at::Tensor> GroupCollectives::GatherToFirst(const at::Tensor& tensor,
                                                        const std::vector<int64_t>& last_sizes) {
  const int64_t widest = *std::max_element(last_sizes.begin(), last_sizes.end());
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape.back() = widest;
  at::Tensor own = tensor;
  if (tensor.size(-1) < widest) {
    own = at::zeros(shape, tensor.options());
    own.narrow(-1, 0, tensor.size(-1)).copy_(tensor);
  }
  std::vector<int64_t> all_shape = {place_.size};
  all_shape.insert(all_shape.end(), shape.begin(), shape.end());
  const at::Tensor all = at::empty(all_shape, tensor.options());
  if (own.numel() > 0) {
    ThrowIfError(group_->AllGather(all.view({-1}), own.contiguous().view({-1})));
  }
  std::vector<at::Tensor> parts;
  if (place_.rank != 0) return parts;
  for (int64_t rank = 0; rank < place_.size; ++rank) {
    parts.push_back(
        all.select(0, rank).narrow(-1, 0, last_sizes[static_cast<size_t>(rank)]).contiguous());
  }
  return parts;
}

}  // namespace taopd
