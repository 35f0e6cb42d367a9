// The trainer's end of a group of GPUs in which it broadcasts weights to vLLM: rank 0, with vLLM's
// workers behind it. vllm_transfer.h says when.
//
// Not thread-safe. A group in which a call has failed cannot be used any more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/io/safetensors/safetensors.h"

namespace taopd {

class WeightBroadcast {
 public:
  // Runs repeatedly while a call waits for the other ranks. The call ends with an error from it.
  using KeepWaiting = std::function<absl::Status()>;

  // Leaves the group.
  virtual ~WeightBroadcast() = default;
  // Returns the 128 bytes by which the others find the group.
  virtual const std::string& unique_id() const = 0;
  // Waits until a group of `num_ranks` is complete, and takes part in vLLM's first all-reduce, of
  // one number. Call it first, once.
  virtual absl::Status Join(int64_t num_ranks, const KeepWaiting& keep_waiting) = 0;
  // Begins to broadcast a tensor, whose bytes must stay valid until Finish has returned.
  virtual absl::Status Send(const TensorView& tensor, const KeepWaiting& keep_waiting) = 0;
  // Waits until every tensor has arrived.
  virtual absl::Status Finish(const KeepWaiting& keep_waiting) = 0;
};

// Makes a group over NCCL for the GPU `device`. Returns INVALID_ARGUMENT, with what to use instead,
// if the program is built without NCCL.
absl::StatusOr<std::unique_ptr<WeightBroadcast>> MakeNcclBroadcast(int device);
// Returns whether the program is built with NCCL.
bool HasNcclBroadcast();

}  // namespace taopd
