// The statistics of an engine (engine.h).
#pragma once

#include <absl/time/time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

namespace taopd {

// A histogram of the number of tokens of the engine's steps.
struct StepSizes {
  // counts[i] steps had at most kBounds[i] tokens and more than the previous bound; the last count
  // is for steps beyond all bounds.
  static constexpr std::array<int64_t, 13> kBounds = {1,   8,    16,   32,   64,   128,  256,
                                                      512, 1024, 2048, 4096, 8192, 16384};
  std::array<uint64_t, kBounds.size() + 1> counts = {};
  uint64_t num_tokens = 0;  // sum over all steps

  void Add(int64_t tokens) {
    const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), tokens);
    ++counts[static_cast<size_t>(bound - kBounds.begin())];
    num_tokens += static_cast<uint64_t>(tokens);
  }
};

// Decode steps of an engine with CUDA graphs (EngineOptions::cuda_graphs); all 0 without.
struct GraphStats {
  int64_t num_graphs = 0;  // at present, one per batch size
  // Counted since the start:
  uint64_t num_captures = 0;  // captures of a whole set: at the start, and when it became unusable
  uint64_t replayed_steps = 0;
  uint64_t padding_rows = 0;  // rows computed by replayed steps and discarded
  uint64_t eager_steps = 0;  // steps with a prompt, larger than all graphs or with longer sequences
};

struct EngineStats {
  int64_t num_waiting = 0;
  int64_t num_running = 0;
  int64_t queued_tokens = 0;
  // Counted since the start:
  uint64_t prompt_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t scored_rows = 0;
  uint64_t finished_requests = 0;
  uint64_t failed_requests = 0;  // including refused requests
  uint64_t refused_queue_full = 0;
  uint64_t refused_client_share = 0;  // the queue had room, but not for this client
  uint64_t num_preempted = 0;         // sequences that lost their keys and values
  // Tokens looked up and tokens found in the prefix cache.
  uint64_t prefix_query_tokens = 0;
  uint64_t prefix_hit_tokens = 0;
  StepSizes step_sizes;
  // Seconds that the engine's thread spent in the layers, and in the stages after them (the head,
  // scores, sampling). A GPU computes while the thread continues, so there head_seconds includes
  // the wait for both.
  double layer_seconds = 0.0;
  double head_seconds = 0.0;
  GraphStats graphs;
  // At present:
  int64_t kv_blocks_in_use = 0;
  int64_t num_kv_blocks = 0;
  // The device refuses to compute; the process must be restarted.
  bool device_failed = false;
  std::string device_error;  // empty if the reason is not known
  // If the device itself failed, the custom kernel that was launched last, or "none". Empty if it
  // did not fail, or if another process of the model was lost.
  std::string device_kernel;
  // The custom kernels that the check at the start has left out (common/model/kernel_setup.h).
  int64_t kernels_left_out = 0;
  // The time of the last heartbeat, which is also updated during a step. If it is old while work
  // waits, the engine is stalled.
  absl::Time last_step;
};

}  // namespace taopd
