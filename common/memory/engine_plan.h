// The memory plan of an inference engine: what a process will need on its device, computed from
// sizes alone, before anything large is allocated. The plan decides the size of the KV pool, and
// with it how long a sequence that generates may be; it refuses what cannot fit.
//
// The teacher makes it before it loads (common/engine/model_plan.h), and `taopd-teacher --plan`
// prints it. A program that starts an engine on weights that it already holds makes it, too.
// Nothing here knows LibTorch; the functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/memory/cuda_graphs.h"
#include "common/memory/memory_budget.h"
#include "common/memory/memory_line.h"
#include "common/memory/model_memory.h"
#include "common/model/config/model_config.h"

namespace taopd {

// The value of kv_cache_bytes that leaves the pool's size to the plan.
inline constexpr int64_t kAutoKvCache = -1;

// The memory of a process before it loads anything: code and data of LibTorch and the other
// libraries, thread stacks, allocators. taopd-teacher with a model of 100 kB holds 141 MiB (RssAnon
// and RssFile), taopd-trainer with one of 0.2 million parameters 172 without that.
inline constexpr int64_t kRuntimeBytes = int64_t{176} << 20;
// On a CUDA device: the context, the modules of the kernels, cuBLAS's workspaces and what the
// caching allocator cannot use. An allowance, not a measurement.
inline constexpr int64_t kCudaRuntimeBytes = int64_t{1} << 30;

struct EnginePlanInput {
  ModelConfig config;
  WeightDtype dtype = WeightDtype::kFloat32;  // of the weights in memory
  // Of the weights in the files; nullopt if there are none. On the CPU, weights that are stored in
  // `dtype` stay in the mapped files, and all others are copied.
  std::optional<WeightDtype> stored_dtype;
  // Whether the weights are a trainer's parameters, which are never mapped.
  bool weights_are_parameters = false;
  MemoryBudget budget;
  // What else the process holds or will hold, such as a trainer's gradients. A budget of CpuBudget
  // includes what the process holds when it is made, so all of that must be in the plan.
  std::vector<MemoryLine> other_lines;

  // As in EngineOptions:
  int64_t max_model_len = 0;  // 0 = max_position_embeddings
  int64_t max_num_seqs = 1;
  int64_t max_num_batched_tokens = 1;
  int64_t head_workspace_bytes = 0;
  int64_t kv_cache_bytes = kAutoKvCache;  // 0 = the engine only scores
  CudaGraphOptions cuda_graphs;
};

struct EnginePlan {
  MemoryBudget budget;
  std::vector<MemoryLine> lines;
  // The most that is held on the budget's device at a time: while the weights are loaded and
  // packed, or when the engine works, which needs activations, logits and the pool instead.
  int64_t total_bytes = 0;
  bool scores_only = false;   // the engine was asked to have no KV pool
  int64_t num_kv_blocks = 0;  // 0 if scores_only
  int64_t kv_block_bytes = 0;
  int64_t max_model_len = 0;
  // The longest sequence that generates: max_model_len, or less if the pool holds less. 0 if
  // scores_only.
  int64_t max_generation_len = 0;
  std::vector<std::string> warnings;  // each names the number that it is about

  int64_t kv_pool_bytes() const { return num_kv_blocks * kv_block_bytes; }
};

// The KV pool is made of whole blocks, and never gets more of them than max_num_seqs sequences of
// max_model_len tokens can fill (kv_pool.h). With kAutoKvCache it gets what everything else leaves
// of the budget, on the CPU half of that, since the machine has other uses for its memory, or what
// one sequence of max_model_len needs if that is more. Layers with a sliding window keep the keys
// and values of all positions, so they need as much as others.
//
// A model whose context is longer than what the pool holds is limited for requests that generate,
// with a warning. Errors name the line that is too large and what to change:
//   INVALID_ARGUMENT    max_model_len exceeds the model's positions, or kv_cache_bytes does not
//                       hold a sequence of the max_model_len that was asked for, or not one block,
//                       or CUDA graphs are asked for where there can be none (CheckCudaGraphs)
//   RESOURCE_EXHAUSTED  the budget is too small for everything but the pool, for the kv_cache_bytes
//                       that were asked for, or for a pool of the max_model_len that was asked for
//
// If RESOURCE_EXHAUSTED is returned, `refused` receives the plan that does not fit, unless it is
// null.
absl::StatusOr<EnginePlan> PlanEngine(const EnginePlanInput& input, EnginePlan* refused = nullptr);

// The plan for people: the table of its lines, and then the totals, the limit, the lengths and
// the warnings, each on a line of its own. Ends with a newline.
std::string PlanText(const EnginePlan& plan);

}  // namespace taopd
