// The memory plan of an inference engine: what a process will need on its device, computed only
// from sizes, before anything large is allocated. The plan decides the size of the KV pool, and
// so how long a sequence that generates may be. It refuses what cannot fit.
//
// The teacher makes the plan before it loads (common/engine/model_plan.h), and
// `taopd-teacher --plan` prints it. A program that starts an engine on weights that it already
// holds also makes one. This header does not depend on LibTorch. The functions are pure.
#pragma once

#include <cstdint>
#include <map>
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
// libraries, thread stacks, allocators. taopd-teacher with a model of 100 kB takes 141 MiB (RssAnon
// and RssFile), and taopd-trainer with a model of 0.2 million parameters takes 172 MiB without that
// model.
inline constexpr int64_t kRuntimeBytes = int64_t{176} << 20;
// The runtime's memory on a CUDA device: the context, the modules of the kernels, cuBLAS's
// workspaces and the part that the caching allocator cannot use. This is an allowance, not a
// measurement.
inline constexpr int64_t kCudaRuntimeBytes = int64_t{1} << 30;

struct EnginePlanInput {
  ModelConfig config;
  DataType dtype = DataType::kFloat32;  // dtype of the weights in memory
  // The dtype of the weights in the files; nullopt if there are none. On the CPU, weights that are
  // stored in `dtype` stay in the mapped files, and all others are copied.
  std::optional<DataType> stored_dtype;
  // Whether an adapter is merged into the weights while they are loaded; they are then copied.
  bool merges_adapter = false;
  // Whether the weights are a trainer's parameters, which are never mapped.
  bool weights_are_parameters = false;
  // Whether the weights can be replaced. If so, weights that were copied stay next to their packed
  // copies.
  bool takes_weights = false;
  MemoryBudget budget;
  // The other memory that the process holds or will hold, such as a trainer's gradients. A budget
  // of CpuBudget includes what the process already holds, so all of that must be in the plan.
  std::vector<MemoryLine> other_lines;

  // The settings of EngineOptions that need memory:
  int64_t max_model_len = 0;  // 0: max_position_embeddings
  int64_t max_num_seqs = 1;
  int64_t max_num_batched_tokens = 1;
  int64_t head_workspace_bytes = 0;
  int64_t kv_cache_bytes = kAutoKvCache;  // 0: the engine only scores
  CudaGraphOptions cuda_graphs;
  KernelMode kernels = KernelMode::kAuto;
  int64_t tensor_parallel_size = 1;  // `config` is already one process's part of the model
};

struct EnginePlan {
  MemoryBudget budget;
  std::vector<MemoryLine> lines;
  // The most that is held on the budget's device at a time: either while the weights are loaded and
  // packed, or while the engine works, which needs activations, logits and the pool instead.
  int64_t total_bytes = 0;
  bool scores_only = false;   // whether the engine was asked to have no KV pool
  int64_t num_kv_blocks = 0;  // 0 if scores_only
  int64_t kv_block_bytes = 0;
  int64_t max_model_len = 0;
  // The longest sequence that generates: max_model_len, or less if the pool holds less. 0 if
  // scores_only.
  int64_t max_generation_len = 0;
  std::vector<std::string> warnings;  // each names the number that it is about

  int64_t kv_pool_bytes() const { return num_kv_blocks * kv_block_bytes; }
};

// An option that is a number, and the least value that it may have.
struct LowerBound {
  const char* name;
  int64_t value;
  int64_t at_least;
};
// Returns INVALID_ARGUMENT for the first value that is below its bound.
absl::Status CheckLowerBounds(std::initializer_list<LowerBound> bounds);

// The settings to change if a line is too large, as texts for messages.
struct MemoryAdvice {
  std::map<MemoryItem, std::string> by_item;
  std::string for_weights;  // and every other item
};
// Returns RESOURCE_EXHAUSTED for lines that exceed the budget.
absl::Status DoesNotFit(const MemoryBudget& budget, const std::vector<MemoryLine>& lines,
                        const MemoryLine& too_large, const MemoryAdvice& advice);

// Plans an engine. The KV pool consists of whole blocks, at most as many as max_num_seqs sequences
// of max_model_len tokens can fill (kv_pool.h). With kAutoKvCache it gets what everything else
// leaves of the budget, but on the CPU only half of that, since the machine has other uses for its
// memory, or what one sequence of max_model_len needs if that is more. Layers with a sliding window
// keep the keys and values of all positions, so they need as much as others.
//
// If the model's context is longer than what the pool can hold, requests that generate are limited,
// with a warning. Without a pool, all requests are limited to what one step can compute. Errors
// name the line that is too large and what to change:
//   INVALID_ARGUMENT    max_model_len exceeds the model's positions, or kv_cache_bytes does not
//                       hold a sequence of the requested max_model_len, or not one block, or CUDA
//                       graphs are requested but impossible (UsesCudaGraphs)
//   RESOURCE_EXHAUSTED  the budget is too small for everything but the pool, for the requested
//                       kv_cache_bytes, or for a pool of the requested max_model_len or one block
//
// If RESOURCE_EXHAUSTED is returned, `refused` receives the plan that does not fit, unless it is
// null.
absl::StatusOr<EnginePlan> PlanEngine(const EnginePlanInput& input, EnginePlan* refused = nullptr);

// Returns the plan for people: the table of its lines, followed by the totals, the limit, the
// lengths and the warnings, each on its own line. Ends with a newline.
std::string PlanText(const EnginePlan& plan);

}  // namespace taopd
