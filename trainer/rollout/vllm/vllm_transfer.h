// Sends weights to a vLLM server over NCCL, by the routes of its weight transfer (the dense backend
// "nccl" of vLLM 0.32), for which it must run with --weight-transfer-config '{"backend": "nccl"}':
//
//   /get_world_size               the number of vLLM's workers
//   /init_weight_transfer_engine  they join a group whose rank 0 is the trainer
//   /start_weight_update          then, once for each version,
//   /update_weights               names, types and shapes; meanwhile the trainer broadcasts the
//                                 tensors in that order
//   /finish_weight_update
//
// This code has not been run with a GPU. Its messages and their order are tested with a group that
// only counts.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "common/base/status.h"
#include "trainer/rollout/vllm/weight_broadcast.h"

namespace taopd {

// Not thread-safe.
class VllmTransfer {
 public:
  // Sends a request to the server, a GET if `body` is empty, and returns the reply's body. Two
  // threads may call it concurrently.
  using Ask = std::function<absl::StatusOr<std::string>(
      const std::string& path, const std::string& body, const std::stop_token& stop)>;
  using MakeBroadcast = std::function<absl::StatusOr<std::unique_ptr<WeightBroadcast>>()>;

  VllmTransfer(Ask ask, MakeBroadcast make_broadcast)
      : ask_(std::move(ask)), make_broadcast_(std::move(make_broadcast)) {}

  // Replaces the server's weights by those of a model's directory, which only this process reads.
  // Makes the group first if there is none. An error ends the group. Returns the errors of `ask`
  // and of WeightBroadcast, and DATA_LOSS for a directory that cannot be read.
  absl::Status Send(const std::string& directory, const std::stop_token& stop);

 private:
  absl::Status JoinGroup(const std::stop_token& stop);
  absl::Status Update(const std::string& directory, const std::stop_token& stop);
  // Runs `work` while the server answers a request, and returns the first error of both. An error
  // of either ends the other.
  absl::Status WorkDuringRequest(
      const std::string& path, const std::string& body, const std::stop_token& stop,
      const std::function<absl::Status(const WeightBroadcast::KeepWaiting&)>& work);

  const Ask ask_;
  const MakeBroadcast make_broadcast_;
  std::unique_ptr<WeightBroadcast> group_;
};

}  // namespace taopd
