// Sends gradients to the ranks that own them, bucket by bucket, while the backward pass runs.
//
// An exchange accompanies one backward pass on each rank:
//   Start()
//   backward pass, which calls OnLayerBackward (ForwardOptions::on_layer_backward)
//   Finish()
// A bucket is sent as soon as the pass has reported its layer. The ranks' parts of this rank's
// slice are added by SumTree (tree_sum.h), so the sums do not depend on the order of
// arrival. With whole gradients (flat_gradients.h) the slice becomes the sum, and the rest of the
// buffer is undefined afterwards. With sharded gradients the sum is added to the slice. Sections
// are opened before the pass reaches them and closed when their buckets have been sent, so besides
// the slice, memory holds the sections of about three layers and the buckets in flight. A rank
// without a pass must call Start and Finish as well.
//
// At most kMaxInFlight buckets are in flight; the pass waits before it sends more. This bounds the
// memory. A pass that waits would otherwise wait at its end.
//
// All ranks must run the same number of exchanges; they send the same buckets in the same order.
// OnLayerBackward runs on the thread of the backward pass, while the caller of the other functions
// waits for the pass. Finish returns the first error; the group cannot be used after an error.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "common/base/status.h"
#include "common/dist/process_group.h"
#include "trainer/optim/flat_gradients.h"

namespace taopd {

class GradientExchange {
 public:
  static constexpr size_t kMaxInFlight = 4;

  // Both must outlive the object. Rank r owns shard r of the layout.
  GradientExchange(FlatGradients* gradients, ProcessGroup* group);
  // Closes all open sections.
  ~GradientExchange();
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  void Start();
  void OnLayerBackward(int64_t layer);
  // Sends the remaining buckets and waits for all.
  absl::Status Finish();
  // Frees the buffers that are kept between exchanges.
  void FreeBuffers() { free_.clear(); }

 private:
  struct InFlight {
    int64_t bucket = 0;
    at::Tensor parts;  // [world_size, n] the ranks' parts of this rank's slice
    ProcessGroup::WorkPtr work;
  };

  // Opens the sections that the backward pass may reach before it reports the next layer.
  void OpenDownTo(int64_t layer);
  void Open(int64_t section);
  void Send(int64_t bucket);
  // Waits for the bucket that has been in flight the longest.
  void Receive();
  // Returns a buffer of at least `size` elements, narrowed to `size`.
  at::Tensor TakeBuffer(int64_t size);
  void GiveBack(const at::Tensor& buffer);

  FlatGradients* const gradients_;
  ProcessGroup* const group_;
  const ParameterLayout& layout_;
  const bool is_sharded_;
  int64_t num_layers_ = 0;
  bool has_tied_head_ = false;
  absl::Status status_;       // the first error
  int64_t next_to_open_ = 0;  // a section
  int64_t next_to_send_ = 0;  // a bucket
  int64_t section_of_received_ = 0;
  std::deque<InFlight> in_flight_;
  std::vector<at::Tensor> free_;  // buffers
};

}  // namespace taopd
