#include "trainer/dist/gradient_exchange.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/dist/tree_sum.h"

namespace taopd {

GradientExchange::GradientExchange(FlatGradients* gradients, ProcessGroup* group)
    : gradients_(gradients),
      group_(group),
      layout_(gradients->layout()),
      is_sharded_(gradients->is_sharded()) {
  TAOPD_CHECK_EQ(layout_.num_shards(), group->world_size());
  has_tied_head_ = true;
  for (const ParameterSlot& slot : layout_.slots()) {
    num_layers_ = std::max(num_layers_, slot.layer);
    if (slot.name == "lm_head.weight") has_tied_head_ = false;
  }
}

GradientExchange::~GradientExchange() { gradients_->CloseAll(); }

at::Tensor GradientExchange::TakeBuffer(int64_t size) {
  // Takes the smallest buffer that is large enough, unless more than half of it would be unused.
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const bool fits = it->numel() >= size && it->numel() / 2 <= size;
    if (fits && (best == free_.end() || it->numel() < best->numel())) best = it;
  }
  if (best == free_.end()) return at::empty({size}, gradients_->options());
  const at::Tensor found = *best;
  free_.erase(best);
  return found.narrow(0, 0, size);
}

// Returns the whole buffer, of which `buffer` may be only the beginning.
void GradientExchange::GiveBack(const at::Tensor& buffer) {
  const auto capacity = static_cast<int64_t>(buffer.storage().nbytes() / sizeof(float));
  free_.push_back(buffer.as_strided({capacity}, {1}));
}

void GradientExchange::Open(int64_t section) {
  if (gradients_->buffer(section).defined()) return;
  gradients_->Open(section, TakeBuffer(layout_.sections()[section].range.size()));
}

// The backward pass reports layer i + 1 before it enters layer i, whose first norm belongs to the
// layer before (Decoder::Forward). After that report it adds to the first norm of layer i and to
// layer i - 1.
void GradientExchange::OpenDownTo(int64_t layer) {
  const std::vector<GradientSection>& sections = layout_.sections();
  const auto end = static_cast<int64_t>(sections.size());
  for (; next_to_open_ < end && sections[next_to_open_].first_layer >= layer; ++next_to_open_) {
    Open(next_to_open_);
  }
}

void GradientExchange::Start() {
  TAOPD_CHECK(in_flight_.empty());
  next_to_open_ = next_to_send_ = section_of_received_ = 0;
  if (!is_sharded_) return;
  const at::NoGradGuard no_grad;
  OpenDownTo(num_layers_ - 1);
  if (!has_tied_head_) return;
  // The tied head adds to the embedding, the last section, before any layer does.
  Open(static_cast<int64_t>(layout_.sections().size()) - 1);
}

void GradientExchange::OnLayerBackward(int64_t layer) {
  const at::NoGradGuard no_grad;
  // Autograd would have made a new .grad for a parameter whose section was not open.
  TAOPD_CHECK(gradients_->AreInPlace());
  const std::vector<GradientBucket>& buckets = layout_.buckets();
  const auto end = static_cast<int64_t>(buckets.size());
  while (next_to_send_ < end && buckets[next_to_send_].layer >= layer) Send(next_to_send_++);
  if (is_sharded_ && layer > kEmbeddingLayer) OpenDownTo(layer - 2);
}

void GradientExchange::Send(int64_t bucket) {
  if (!status_.ok()) return;
  if (in_flight_.size() == kMaxInFlight) Receive();
  if (!status_.ok()) return;
  const FlatRange range = layout_.buckets()[bucket].range;
  at::Tensor gradient;
  if (is_sharded_) {
    int64_t section = section_of_received_;
    while (layout_.sections()[section].end_bucket <= bucket) ++section;
    Open(section);  // opens the section if no pass did
    gradient = gradients_->buffer(section).narrow(
        0, range.begin - layout_.sections()[section].range.begin, range.size());
  } else {
    gradient = gradients_->Range(range);
  }
  InFlight sent;
  sent.bucket = bucket;
  sent.parts = TakeBuffer(range.size());
  sent.work = group_->StartAllToAll(sent.parts, gradient);
  in_flight_.push_back(std::move(sent));
}

void GradientExchange::Receive() {
  InFlight received = std::move(in_flight_.front());
  in_flight_.pop_front();
  status_.Update(received.work->Wait());
  if (!status_.ok()) return;
  const at::Tensor parts = received.parts.view({group_->world_size(), -1});
  std::vector<at::Tensor> terms;
  for (int64_t r = 0; r < group_->world_size(); ++r) terms.push_back(parts[r]);
  const at::Tensor sum = SumTree(std::move(terms));
  at::Tensor slice =
      gradients_->Range(layout_.SliceOfBucket(layout_.buckets()[received.bucket], group_->rank()));
  if (is_sharded_) {
    slice.add_(sum);
    const GradientSection& section = layout_.sections()[section_of_received_];
    if (received.bucket + 1 == section.end_bucket) {
      GiveBack(gradients_->Close(section_of_received_));
      ++section_of_received_;
    }
  } else {
    slice.copy_(sum);
  }
  GiveBack(received.parts);
}

absl::Status GradientExchange::Finish() {
  const at::NoGradGuard no_grad;
  OnLayerBackward(kEmbeddingLayer);
  while (status_.ok() && !in_flight_.empty()) Receive();
  return status_;
}

}  // namespace taopd
