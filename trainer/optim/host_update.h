// AdamW's update on the host for parameters on another device, as ZeRO-Offload divides it (Ren et
// al., "ZeRO-Offload: democratizing billion-scale model training", USENIX ATC 2021): master copies
// and moments lie in the host's memory, and the device has only weights and gradients.
//
// An update takes the parameters in parcels. Of each it copies the gradients to the host, computes
// there, and copies the weights back. Two sets of staging buffers take turns, page-locked ones for
// a CUDA device, so that the gradients of the next parcel and the weights of the last one are on
// their way while a parcel is computed. An element's new bits are those of UpdateAdamW on all
// states at once, however they are cut into parcels.
//
// The device may be a CPU, whose copies are done at once: for tests. Not thread-safe.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/torch/layers/adamw.h"

namespace taopd {

class HostUpdate {
 public:
  // Elements of a parcel: 16 MiB of gradients.
  static constexpr int64_t kParcelElements = int64_t{1} << 22;

  // The states are UpdateAdamW's but for the devices: parameters and gradients are on one device,
  // master copies and moments on the CPU. A float32 parameter has no master here. All gradients are
  // defined and float32.
  explicit HostUpdate(std::vector<AdamWState> states, int64_t parcel_elements = kParcelElements);

  // Returns when the host's part is done; the device gets the last weights before it runs whatever
  // is queued after this call. Throws as UpdateAdamW does.
  void Update(const AdamWSettings& settings);

 private:
  // Elements of a state, and their place in the staging buffers.
  struct Part {
    size_t state = 0;
    int64_t first = 0;
    int64_t size = 0;
    int64_t place = 0;
  };
  using Parcel = std::vector<Part>;
  struct Staging {
    at::Tensor gradients;               // [parcel_elements] float32
    at::Tensor weights;                 // [parcel_elements] of the widest parameter's type
    std::optional<c10::Event> arrived;  // the gradients have; none for a CPU
  };

  void CutIntoParcels(int64_t parcel_elements);
  at::Tensor StagedWeights(const Staging& staging, const Part& part) const;
  void StartFetch(const Parcel& parcel, Staging* staging);
  void WaitFor(Staging* staging) const;
  void Compute(const AdamWSettings& settings, const Parcel& parcel, const Staging& staging) const;
  void StartReturn(const Parcel& parcel, const Staging& staging);

  std::vector<AdamWState> states_;
  at::Device device_ = at::kCPU;
  std::vector<Parcel> parcels_;
  std::array<Staging, 2> staging_;
};

}  // namespace taopd
