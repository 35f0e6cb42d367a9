// Brings gradients to the ranks that own them, bucket by bucket, while the backward pass goes on.
//
// An exchange accompanies one backward pass on each rank:
//   Start()
//   backward pass, which calls OnLayerBackward (ForwardOptions::on_layer_backward)
//   Finish()
// A bucket is sent as soon as the pass has reported its layer. What arrives for this rank's slice
// is added over the ranks by SumTree (common/dist/tree_sum.h), so the sums do not depend on when
// what arrived. With whole gradients (flat_gradients.h) the slice becomes the sum; the rest of the
// buffer is undefined then. With sharded ones the sum is added to the slice, and the sections are
// opened before the pass comes to them and closed when their buckets have been sent: besides the
// slice, memory holds the sections of about three layers and what is on its way. A rank that has no
// pass calls Start and Finish as well.
//
// At most kMaxInFlight buckets are on their way; the pass waits before it sends more. That bounds
// the memory, and if the network is slower than the pass, the network decides anyway.
//
// All ranks exchange equally often and send the same buckets in the same order. The thread that
// runs the backward pass calls OnLayerBackward while the other functions' caller waits for it.
// After an error the group cannot be used any more; Finish returns it.
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
  // Closes what is open.
  ~GradientExchange();
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  void Start();
  void OnLayerBackward(int64_t layer);
  // Sends the other buckets and waits for all.
  absl::Status Finish();
  // Frees the buffers that are kept from one exchange to the next.
  void FreeBuffers();

 private:
  struct InFlight {
    int64_t bucket = 0;
    at::Tensor parts;  // [world_size, n] what the ranks send for this rank's slice
    ProcessGroup::WorkPtr work;
  };

  // Opens the sections that the backward pass may come to before it reports the next layer.
  void OpenDownTo(int64_t layer);
  void Open(int64_t section);
  void Send(int64_t bucket);
  // Waits for the bucket that has been on its way the longest.
  void Receive();
  // A buffer of at least `size` elements, cut to it.
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
