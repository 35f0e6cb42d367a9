// Collectives over a process group of c10d.
#pragma once

#include "common/dist/process_group.h"
#include "common/model/parallel/collectives.h"

namespace taopd {

class GroupCollectives final : public Collectives {
 public:
  // `group` must outlive the object.
  explicit GroupCollectives(ProcessGroup* group)
      : group_(group), place_{group->rank(), group->world_size()} {}

  const TensorParallel& place() const override { return place_; }
  void AllReduceSum(at::Tensor& tensor) override;
  void Broadcast(at::Tensor& tensor) override;
  std::vector<at::Tensor> GatherToFirst(const at::Tensor& tensor,
                                        const std::vector<int64_t>& last_sizes) override;

 private:
  ProcessGroup* const group_;
  const TensorParallel place_;
};

}  // namespace taopd
