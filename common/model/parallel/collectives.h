// The communication between the processes of a tensor parallel model while they compute. The model
// knows this interface; common/engine/parallel implements it over a process group.
//
// Every process calls the same functions in the same order with tensors of the same shapes and
// types. The calls block. A lost process or a time-out throws, and the group cannot be used
// afterwards. One thread at a time may use it.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "common/model/config/tensor_parallel.h"

namespace taopd {

class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual const TensorParallel& place() const = 0;

  // Sums in place; afterwards every process has the same bits.
  virtual void AllReduceSum(at::Tensor& tensor) = 0;
  // Copies rank 0's tensor to all processes.
  virtual void Broadcast(at::Tensor& tensor) = 0;
  // Rank 0 gets the tensors of all processes in the order of ranks, and the others an empty list.
  // The tensors may differ in their last dimension: last_sizes has one entry per rank.
  virtual std::vector<at::Tensor> GatherToFirst(const at::Tensor& tensor,
                                                const std::vector<int64_t>& last_sizes) = 0;
};

}  // namespace taopd
