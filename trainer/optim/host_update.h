// AdamW's update on the host for parameters on another device, as in ZeRO-Offload (Ren et al.,
// "ZeRO-Offload: democratizing billion-scale model training", USENIX ATC 2021): master copies and
// moments are in the host's memory, and the device has only weights and gradients.
//
// An update processes the parameters in chunks. For each chunk it copies the gradients to the
// host, computes there, and copies the weights back. Two sets of staging buffers (page-locked for a
// CUDA device) alternate, so that the gradients of the next chunk and the weights of the previous
// one are in transit while a chunk is computed. The result has the same bits as one UpdateAdamW
// on all states, for any size of the chunks.
//
// For tests the device may be a CPU, whose copies are synchronous. Not thread-safe.
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
  // The number of elements of a chunk: 16 MiB of gradients.
  static constexpr int64_t kChunkElements = int64_t{1} << 22;

  // The states are those of UpdateAdamW, except for the devices: parameters and gradients are on
  // one device, master copies and moments on the CPU. A float32 parameter has no master copy here.
  // All gradients are defined and float32.
  explicit HostUpdate(std::vector<AdamWState> states, int64_t chunk_elements = kChunkElements);

  // Returns when the host's part is done. The device receives the last weights before it runs
  // anything that is queued after this call. Throws the exceptions of UpdateAdamW.
  void Update(const AdamWSettings& settings);

 private:
  // Elements of a state, and their place in the staging buffers.
  struct Part {
    size_t state = 0;
    int64_t first = 0;
    int64_t size = 0;
    int64_t place = 0;
  };
  using Chunk = std::vector<Part>;
  struct Staging {
    at::Tensor gradients;               // [chunk_elements] float32
    at::Tensor weights;                 // [chunk_elements] of the widest parameter's type
    std::optional<c10::Event> arrived;  // recorded after the gradients' copy; none for a CPU
  };

  void CutIntoChunks(int64_t chunk_elements);
  at::Tensor StagedWeights(const Staging& staging, const Part& part) const;
  void StartFetch(const Chunk& chunk, Staging* staging);
  void WaitFor(Staging* staging) const;
  void Compute(const AdamWSettings& settings, const Chunk& chunk, const Staging& staging) const;
  void StartCopyBack(const Chunk& chunk, const Staging& staging);

  std::vector<AdamWState> states_;
  at::Device device_ = at::kCPU;
  std::vector<Chunk> chunks_;
  std::array<Staging, 2> staging_;
};

}  // namespace taopd
