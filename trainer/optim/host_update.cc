#include "trainer/optim/host_update.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "taopd/base/round_up.h"

namespace taopd {
namespace {

// Parts begin at multiples of 64 bytes in all staging buffers (32 elements of 2 bytes).
constexpr int64_t kPlaceAlignment = 32;

at::Tensor Narrow(const at::Tensor& flat, int64_t first, int64_t size) {
  return flat.view({-1}).narrow(0, first, size);
}

}  // namespace

HostUpdate::HostUpdate(std::vector<AdamWState> states, int64_t chunk_elements)
    : states_(std::move(states)) {
  bool has_float = false;
  for (const AdamWState& state : states_) {
    device_ = state.parameter.device();
    has_float = has_float || state.parameter.scalar_type() == at::kFloat;
    TAOPD_CHECK(state.gradient.defined() && state.gradient.device() == device_);
    TAOPD_CHECK(state.exp_avg.is_cpu() && state.exp_avg_sq.is_cpu());
  }
  CutIntoChunks(chunk_elements);
  if (chunks_.empty()) return;
  const auto options = at::TensorOptions().pinned_memory(!device_.is_cpu());
  for (Staging& staging : staging_) {
    staging.gradients = at::empty({chunk_elements}, options.dtype(at::kFloat));
    staging.weights =
        at::empty({chunk_elements}, options.dtype(has_float ? at::kFloat : at::kBFloat16));
    if (!device_.is_cpu()) staging.arrived.emplace(device_.type());
  }
}

void HostUpdate::CutIntoChunks(int64_t chunk_elements) {
  TAOPD_CHECK(chunk_elements > 0 && chunk_elements % kPlaceAlignment == 0);
  // The end of the last chunk; a new chunk begins when it is full.
  int64_t place = chunk_elements;
  for (size_t i = 0; i < states_.size(); ++i) {
    for (int64_t first = 0; first < states_[i].parameter.numel();) {
      if (place == chunk_elements) {
        chunks_.emplace_back();
        place = 0;
      }
      const int64_t size = std::min(states_[i].parameter.numel() - first, chunk_elements - place);
      chunks_.back().push_back({i, first, size, place});
      first += size;
      place += RoundUp(size, kPlaceAlignment);
    }
  }
}

at::Tensor HostUpdate::StagedWeights(const Staging& staging, const Part& part) const {
  const at::ScalarType type = states_[part.state].parameter.scalar_type();
  const at::Tensor weights = staging.weights.narrow(0, part.place, part.size);
  return type == weights.scalar_type() ? weights : weights.view(type).narrow(0, 0, part.size);
}

void HostUpdate::StartFetch(const Chunk& chunk, Staging* staging) {
  for (const Part& part : chunk) {
    const AdamWState& state = states_[part.state];
    staging->gradients.narrow(0, part.place, part.size)
        .copy_(Narrow(state.gradient, part.first, part.size), /*non_blocking=*/true);
    // Without a master copy the update starts from the weights.
    if (!state.master.defined()) {
      StagedWeights(*staging, part)
          .copy_(Narrow(state.parameter, part.first, part.size), /*non_blocking=*/true);
    }
  }
  if (staging->arrived) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    staging->arrived->record(guard.getStream(device_));
  }
}

// The buffers' previous weights were queued before this fetch, so they have left once it has
// arrived.
void HostUpdate::WaitFor(Staging* staging) const {
  if (staging->arrived) staging->arrived->synchronize();
}

void HostUpdate::Compute(const AdamWSettings& settings, const Chunk& chunk,
                         const Staging& staging) const {
  std::vector<AdamWState> states;
  for (const Part& part : chunk) {
    const AdamWState& whole = states_[part.state];
    AdamWState state = whole;
    state.parameter = StagedWeights(staging, part);
    state.gradient = staging.gradients.narrow(0, part.place, part.size);
    if (whole.master.defined()) {
      state.master = Narrow(whole.master, part.first, part.size);
    } else if (state.parameter.scalar_type() == at::kFloat) {
      state.master = state.parameter;
    }
    state.exp_avg = Narrow(whole.exp_avg, part.first, part.size);
    state.exp_avg_sq = Narrow(whole.exp_avg_sq, part.first, part.size);
    state.first_element = whole.first_element + part.first;
    states.push_back(std::move(state));
  }
  UpdateAdamW(settings, states);
}

void HostUpdate::StartCopyBack(const Chunk& chunk, const Staging& staging) {
  for (const Part& part : chunk) {
    Narrow(states_[part.state].parameter, part.first, part.size)
        .copy_(StagedWeights(staging, part), /*non_blocking=*/true);
  }
}

void HostUpdate::Update(const AdamWSettings& settings) {
  if (chunks_.empty()) return;
  const at::NoGradGuard no_grad;
  const c10::OptionalDeviceGuard guard(device_);
  StartFetch(chunks_[0], &staging_[0]);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (i + 1 < chunks_.size()) StartFetch(chunks_[i + 1], &staging_[(i + 1) % 2]);
    WaitFor(&staging_[i % 2]);
    Compute(settings, chunks_[i], staging_[i % 2]);
    StartCopyBack(chunks_[i], staging_[i % 2]);
  }
}

}  // namespace taopd
