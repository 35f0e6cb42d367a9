// Stands in for nccl_broadcast.cc in builds without CUDA or without NCCL.
#include "trainer/rollout/vllm/weight_broadcast.h"

namespace taopd {

absl::StatusOr<std::unique_ptr<WeightBroadcast>> MakeNcclBroadcast(int) {
  return InvalidArgument(
      "rollout.weight_transfer = nccl: this program is built without NCCL; use directory, or build "
      "the preset cuda with nccl.h");
}

bool HasNcclBroadcast() { return false; }

}  // namespace taopd
