// An estimate of how long a step of on-policy distillation takes on machines that are described but
// not present, and of how much its ranks send to each other, for planning before machines are
// rented. Every number follows from sizes and stated rates; nothing is measured. Costs that are not
// in the lines below are not counted (kernel launches, imbalance, evaluation, saving).
//
// This header does not depend on LibTorch. The functions are pure.
//
// Letters: P parameters, A values of adapters, b bytes of a weight, N ranks, S sequences per rank,
// p prompt and r response tokens of a sequence, K bytes of keys and values of a token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace taopd {

// The rates of one rank's device.
struct DeviceRates {
  double flops = 0;                    // rate of matrix products, per second; above 0
  double memory_bytes_per_second = 0;  // above 0
  // The rate to the other ranks, in each direction; above 0 with several ranks.
  double network_bytes_per_second = 0;
  double host_bytes_per_second = 0;  // rate of the host's memory; above 0 if it computes updates
};

struct StepWork {
  int64_t num_parameters = 0;     // P
  int64_t active_parameters = 0;  // used by a token; fewer than P in a mixture of experts
  // The values of adapters and of the modules that are saved with them, in float32. Above 0, they
  // are trained, and the P parameters are frozen.
  int64_t adapter_parameters = 0;
  int64_t bytes_per_weight = 2;               // b
  int64_t kv_bytes_per_token = 0;             // K
  int64_t num_sequences = 0;                  // sequences of all ranks in a step
  int64_t max_running = 0;                    // sequences that a rank generates at once
  int64_t prompt_tokens = 0;                  // p, the longest
  int64_t response_tokens = 0;                // r, the longest
  int64_t rollouts_of_prompt = 1;             // rollouts that share one computation of a prompt
  int64_t updates = 1;                        // updates per step
  int64_t micro_batches = 1;                  // of an update with sharded gradients, else 1
  bool recomputes_layers = false;             // fully, in the backward pass
  int64_t optimizer_bytes_per_parameter = 0;  // read and written by an update
  bool updates_on_host = false;               // instead of on a device
  int64_t num_ranks = 1;                      // N
};

struct EstimateLine {
  std::string name;
  double seconds = 0;
  int64_t sent_bytes = 0;  // bytes that each rank sends in a step
  std::string note;        // the formula
};

struct StepEstimate {
  std::vector<EstimateLine> lines;
  double seconds = 0;
  int64_t sent_bytes = 0;
  double tokens_per_second = 0;  // prompt and response tokens of all ranks
};

// The lines follow one another, without overlap:
//   rollout, prompts    2 P S p / n FLOP for n rollouts per prompt; at least one read of the
//                       weights
//   rollout, responses  r times: the weights once, and the keys and values of the running sequences
//                       at half of their length; more than max_running sequences take turns
//   forward, backward   6 P S (p + r) FLOP, 8 P with recomputation
//   gradients           4 P (N - 1) / N bytes to others per update (reduce-scatter of float32);
//                       after each of the micro-batches if gradients are sharded
//   optimizer           optimizer_bytes_per_parameter P / N of memory traffic per update; on the
//                       host at its memory's rate, assuming that the link to the device keeps up
//   weights             b P (N - 1) / N bytes to others per update (all-gather)
// With adapters the P have no gradient, so forward and backward take 4 P S (p + r) FLOP, or
// 6 P with recomputation. The last three lines then have A instead of P, with 4 bytes each.
// The small products of the adapters and their merge are not counted.
// A rank's S is num_sequences / N, rounded up. The teacher is not included: it works in parallel
// with the rollouts.
StepEstimate EstimateStep(const StepWork& work, const DeviceRates& rates);

// Returns a table for people, with the totals.
std::string EstimateText(const StepEstimate& estimate);

}  // namespace taopd
