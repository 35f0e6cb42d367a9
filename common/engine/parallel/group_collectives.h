// The process group of a tensor parallel model: the options on which all ranks agree, and its
// collectives.
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

// Returns where the ranks of one machine meet: a port of 127.0.0.1 on which rank 0 listens.
inline Rendezvous ParallelRendezvous(int64_t rank, int64_t size, int64_t master_port) {
  Rendezvous rendezvous;
  rendezvous.rank = rendezvous.local_rank = rank;
  rendezvous.world_size = rendezvous.local_world_size = size;
  rendezvous.master_addr = "127.0.0.1";
  rendezvous.master_port = static_cast<int>(master_port);
  return rendezvous;
}

// The longest time that rank 0 waits for the other ranks to start, and then for them to join.
inline constexpr absl::Duration kParallelJoinTimeout = absl::Minutes(2);

inline ProcessGroupOptions ParallelGroupOptions(at::Device device) {
  ProcessGroupOptions options;
  options.device = device;
  options.connect_timeout = kParallelJoinTimeout;
  // The ranks do the same work at the same time, so they wait only for differences in speed.
  options.collective_timeout = absl::Minutes(2);
  return options;
}

}  // namespace taopd
