#include "common/memory/engine_plan.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <utility>

#include "common/base/memory.h"
#include "common/memory/kv_pool.h"
#include "common/model/config/dtype.h"
#include "taopd/head/logit_chunk.h"

namespace taopd {
namespace {

absl::StatusOr<bool> UsesGraphs(const EnginePlanInput& input) {
  return UsesCudaGraphs(input.cuda_graphs, input.config,
                        {.dtype = input.dtype,
                         .on_cpu = input.budget.on_cpu(),
                         .scores_only = input.kv_cache_bytes == 0,
                         .kernels = input.kernels,
                         .tensor_parallel_size = input.tensor_parallel_size});
}

bool StaysMapped(const EnginePlanInput& input) {
  return input.budget.on_cpu() && !input.weights_are_parameters && !input.merges_adapter &&
         input.stored_dtype == input.dtype;
}

void AddWeights(const EnginePlanInput& input, std::vector<MemoryLine>* lines) {
  using enum MemoryItem;
  const WeightCounts counts = CountWeights(input.config);
  const std::string& device = input.budget.device;
  const int64_t value_bytes = SizeOf(input.dtype);
  const bool mapped = StaysMapped(input);
  const std::string note =
      mapped ? ConfigDtype(input.dtype) + ", in the mapped files" : ConfigDtype(input.dtype);
  AppendLine(kEmbedding, device, counts.embedding * value_bytes, note, lines);
  AppendLine(kNormsAndBiases, device, counts.vectors * value_bytes, note, lines);
  // On the CPU, inference drops the weights that it has packed, but not parameters.
  const bool dropped =
      input.budget.on_cpu() && !input.weights_are_parameters && !input.takes_weights;
  const MemoryKind kind = mapped    ? MemoryKind::kReclaimable
                          : dropped ? MemoryKind::kLoading
                                    : MemoryKind::kHeld;
  const char* const packed_note = mapped    ? "; read once, to be packed"
                                  : dropped ? "; dropped when packed"
                                            : "";
  AppendLine(kHead, device, counts.head * value_bytes, note + packed_note, lines, kind);
  AppendLine(kProjections, device, counts.projections * value_bytes, note + packed_note, lines,
             kind);
  if (!mapped && input.stored_dtype) {
    AppendLine(kWeightFiles, "cpu", input.config.NumParameters() * SizeOf(*input.stored_dtype),
               "mapped; read once, to be copied", lines, MemoryKind::kReclaimable);
  }
  if (!input.budget.on_cpu()) return;  // CUDA kernels read the weights in place
  const DataType packed_dtype = PackedDtype(input.dtype);
  const std::string packed =
      ConfigDtype(packed_dtype) +
      (packed_dtype == DataType::kBFloat16 ? ", in 12 bits without loss" : ", in panels");
  AppendLine(kPackedProjections, device, PackedProjectionBytes(input.config, input.dtype), packed,
             lines);
  AppendLine(kPackedHead, device, PackedHeadBytes(input.config, input.dtype), packed, lines);
}

// Returns the bytes of the logits of one chunk of rows.
int64_t HeadWorkspaceBytes(const EnginePlanInput& input, int64_t num_rows) {
  const bool on_cpu = input.budget.on_cpu();
  const int64_t vocab_size = input.config.vocab_size;
  const int64_t most_rows =
      LogitChunkRows(on_cpu, input.head_workspace_bytes, vocab_size, kScoringBuffersOnDevice);
  return std::min(num_rows, most_rows) * (on_cpu ? 1 : kScoringBuffersOnDevice) * vocab_size *
         static_cast<int64_t>(sizeof(float));
}

// Returns all lines except the KV pool.
std::vector<MemoryLine> LinesBeforePool(const EnginePlanInput& input, int64_t max_model_len) {
  using enum MemoryItem;
  const bool on_cpu = input.budget.on_cpu();
  const std::string& device = input.budget.device;
  constexpr char kCode[] = "code and data of the libraries";
  std::vector<MemoryLine> lines;
  if (on_cpu) {
    AppendLine(kRuntime, device, kRuntimeBytes, kCode, &lines);
  } else {
    AppendLine(kRuntime, device, kCudaRuntimeBytes, "CUDA context, kernels, cuBLAS", &lines);
    AppendLine(kRuntime, "cpu", kRuntimeBytes, kCode, &lines);
  }
  lines.insert(lines.end(), input.other_lines.begin(), input.other_lines.end());
  AddWeights(input, &lines);
  // A step cannot have more tokens than all sequences have together.
  int64_t num_rows = input.max_num_batched_tokens;
  if (max_model_len < num_rows / input.max_num_seqs) num_rows = input.max_num_seqs * max_model_len;
  // Without a pool, a sequence is computed in one step, however long it is.
  if (input.kv_cache_bytes == 0) num_rows = std::max(num_rows, max_model_len);
  AppendLine(kActivations, device, ActivationBytes(input.config, num_rows, input.dtype, on_cpu),
             Concat("one step of ", num_rows, " tokens"), &lines);
  AppendLine(kHeadWorkspace, device, HeadWorkspaceBytes(input, num_rows),
             "logits of a chunk of rows", &lines);
  if (UsesGraphs(input).value_or(false)) {
    const std::vector<int64_t> sizes = CaptureSizes(
        LargestCaptureSize(input.cuda_graphs, input.max_num_seqs, input.max_num_batched_tokens));
    const int64_t max_seq_len = std::min(input.cuda_graphs.max_seq_len, max_model_len);
    AppendLine(kCudaGraphs, device, CudaGraphBytes(input.config, input.dtype, sizes, max_seq_len),
               Concat(sizes.size(), " batch sizes up to ", sizes.back(), ", sequences up to ",
                      max_seq_len, " tokens"),
               &lines);
  }
  return lines;
}

// Returns the largest number of bytes that the lines take at a time.
int64_t PeakBytes(const std::vector<MemoryLine>& lines, const std::string& device) {
  using enum MemoryItem;
  const int64_t held = HeldBytes(lines, device);
  int64_t work_bytes = 0;
  for (const MemoryLine& line : lines) {
    if (line.item == kKvPool || line.item == kActivations || line.item == kHeadWorkspace ||
        line.item == kCudaGraphs) {
      work_bytes += line.bytes;
    }
  }
  return std::max(held, held - work_bytes + BytesOfKind(lines, device, MemoryKind::kLoading));
}

MemoryAdvice EngineAdvice(const EnginePlanInput& input) {
  using enum MemoryItem;
  MemoryAdvice advice;
  advice.by_item = {
      {kKvPool, "lower kv_cache_bytes or max_model_len"},
      {kActivations, input.kv_cache_bytes == 0 && input.max_model_len > input.max_num_batched_tokens
                         ? "lower max_model_len, or use a KV cache"
                         : "lower max_num_batched_tokens"},
      {kHeadWorkspace, "lower head_workspace_bytes"},
      {kCudaGraphs,
       "lower max_cudagraph_capture_size or max_seq_len_to_capture, or set cuda_graphs to false"},
      {kRuntime, "give the process more memory"},
  };
  for (const MemoryLine& line : input.other_lines)
    advice.by_item.emplace(line.item, "make it smaller, or use a device with more memory");
  advice.for_weights =
      Concat(input.dtype == DataType::kBFloat16 ? "use a " : "load it as bfloat16, or use a ",
             input.budget.on_cpu() ? "machine" : "device", " with more memory or a smaller model");
  return advice;
}

absl::Status CheckInput(const EnginePlanInput& input) {
  TAOPD_RETURN_IF_ERROR(CheckLowerBounds({
      {"max_model_len", input.max_model_len, 0},
      {"max_num_seqs", input.max_num_seqs, 1},
      {"max_num_batched_tokens", input.max_num_batched_tokens, 1},
      {"head_workspace_bytes", input.head_workspace_bytes, 1},
      {"kv_cache_bytes", input.kv_cache_bytes, kAutoKvCache},
  }));
  if (input.max_model_len > input.config.max_position_embeddings) {
    return InvalidArgument("max_model_len ", input.max_model_len,
                           " exceeds the model's max_position_embeddings ",
                           input.config.max_position_embeddings);
  }
  TAOPD_RETURN_IF_ERROR(CheckCaptureLimits(input.cuda_graphs, input.max_num_seqs));
  return UsesGraphs(input).status();
}

// Halves the longest sequence, which a step computes at once, until it fits or until other steps
// take as much.
void ShortenToFit(const EnginePlanInput& input, EnginePlan* plan) {
  const int64_t asked = plan->max_model_len;
  while (plan->max_model_len > input.max_num_batched_tokens &&
         PeakBytes(plan->lines, input.budget.device) > input.budget.limit_bytes) {
    plan->max_model_len /= 2;
    plan->lines = LinesBeforePool(input, plan->max_model_len);
  }
  if (plan->max_model_len == asked) return;
  plan->warnings.push_back(
      Concat("without a KV pool, a sequence is computed in one step: requests are limited to ",
             plan->max_model_len, " tokens, below the ", asked, " of the model"));
}

// Returns the bytes that the plan chooses. `left_bytes` >= 0 is what everything else leaves.
int64_t AutoPoolBytes(const EnginePlanInput& input, const EnginePlan& plan, int64_t left_bytes) {
  if (!input.budget.on_cpu()) return left_bytes;
  const int64_t bytes_of_one = KvBlocksFor(plan.max_model_len) * plan.kv_block_bytes;
  return std::max(left_bytes / 2, std::min(left_bytes, bytes_of_one));
}

// Returns the reason why the pool that the plan would choose is too small.
absl::Status RefuseAutoPool(const EnginePlanInput& input, const EnginePlan& plan,
                            int64_t pool_bytes) {
  const bool asked = input.max_model_len > 0;
  const std::string wanted = asked ? Concat("one sequence of max_model_len ", input.max_model_len)
                                   : Concat("one block of ", kBlockTokens, " tokens");
  const int64_t wanted_bytes = KvBlocksFor(asked ? input.max_model_len : 1) * plan.kv_block_bytes;
  const MemoryBudget& budget = plan.budget;
  return ResourceExhausted(
      "the KV pool gets ", pool_bytes / plan.kv_block_bytes * plan.kv_block_bytes, " bytes on ",
      budget.device, ", but ", wanted, " needs ", wanted_bytes, " bytes. Everything else takes ",
      MemoryText(HeldBytes(plan.lines, budget.device)), " of ", MemoryText(budget.limit_bytes),
      " (", budget.source,
      "): lower max_model_len, use a device with more memory, or set the KV cache to 0 bytes to "
      "score only");
}

// Adds the pool's line, and limits sequences that generate to what the pool can hold.
absl::Status AddPool(const EnginePlanInput& input, EnginePlan* plan) {
  const int64_t left_bytes = plan->budget.limit_bytes - HeldBytes(plan->lines, plan->budget.device);
  const bool is_auto = input.kv_cache_bytes == kAutoKvCache;
  const int64_t bytes = is_auto ? AutoPoolBytes(input, *plan, left_bytes) : input.kv_cache_bytes;
  const absl::StatusOr<KvPoolSize> pool =
      SizeKvPool(bytes, plan->kv_block_bytes, plan->max_model_len, input.max_num_seqs,
                 /*length_was_asked_for=*/input.max_model_len > 0);
  if (!pool.ok()) return is_auto ? RefuseAutoPool(input, *plan, bytes) : pool.status();
  plan->num_kv_blocks = pool->num_blocks;
  plan->max_generation_len = pool->max_generation_len;
  const int64_t num_tokens = plan->num_kv_blocks * kBlockTokens;
  const std::string note = absl::StrFormat(
      "%d blocks of %d tokens: %.1f sequences of %d tokens", plan->num_kv_blocks, kBlockTokens,
      static_cast<double>(num_tokens) / static_cast<double>(plan->max_model_len),
      plan->max_model_len);
  plan->lines.push_back(
      {MemoryItem::kKvPool, plan->budget.device, MemoryKind::kHeld, plan->kv_pool_bytes(), note});
  if (plan->kv_pool_bytes() > left_bytes)
    return DoesNotFit(plan->budget, plan->lines, plan->lines.back(), EngineAdvice(input));
  if (plan->max_generation_len < plan->max_model_len) {
    plan->warnings.push_back(
        Concat("the KV pool holds ", num_tokens, " tokens: requests that generate are limited to ",
               plan->max_generation_len, " tokens (max_generation_len), below the ",
               plan->max_model_len, " of max_model_len"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLowerBounds(std::initializer_list<LowerBound> bounds) {
  for (const auto& [name, value, at_least] : bounds) {
    if (value < at_least) return InvalidArgument(name, " ", value, " must be at least ", at_least);
  }
  return absl::OkStatus();
}

absl::Status DoesNotFit(const MemoryBudget& budget, const std::vector<MemoryLine>& lines,
                        const MemoryLine& too_large, const MemoryAdvice& advice) {
  const auto found = advice.by_item.find(too_large.item);
  return ResourceExhausted("the memory plan takes ", MemoryText(PeakBytes(lines, budget.device)),
                           " on ", budget.device, ", which exceeds its ",
                           MemoryText(budget.limit_bytes), " (", budget.source,
                           "). The line that is too large is \"", NameOf(too_large.item),
                           "\" with ", MemoryText(too_large.bytes), ": ",
                           found != advice.by_item.end() ? found->second : advice.for_weights);
}

absl::StatusOr<EnginePlan> PlanEngine(const EnginePlanInput& input, EnginePlan* refused) {
  TAOPD_RETURN_IF_ERROR(CheckInput(input));
  EnginePlan plan;
  plan.budget = input.budget;
  plan.warnings = input.budget.warnings;
  plan.scores_only = input.kv_cache_bytes == 0;
  plan.max_model_len =
      input.max_model_len > 0 ? input.max_model_len : input.config.max_position_embeddings;
  plan.kv_block_bytes = KvBlockBytes(input.config, input.dtype, input.budget.on_cpu());
  plan.lines = LinesBeforePool(input, plan.max_model_len);

  const std::string& device = input.budget.device;
  if (plan.scores_only && input.max_model_len == 0) ShortenToFit(input, &plan);
  absl::Status fits;
  if (PeakBytes(plan.lines, device) > input.budget.limit_bytes) {
    fits =
        DoesNotFit(plan.budget, plan.lines, *LargestLine(plan.lines, device), EngineAdvice(input));
  } else if (!plan.scores_only) {
    fits = AddPool(input, &plan);
  }
  plan.total_bytes = PeakBytes(plan.lines, device);
  if (fits.ok()) return plan;
  if (absl::IsResourceExhausted(fits) && refused != nullptr) *refused = std::move(plan);
  return fits;
}

std::string PlanText(const EnginePlan& plan) {
  const MemoryBudget& budget = plan.budget;
  std::string text = MemoryTable(plan.lines);
  text += Concat("total on ", budget.device, ": ", MemoryText(plan.total_bytes), " of ",
                 MemoryText(budget.limit_bytes), " (", budget.source, ")\n");
  if (!budget.on_cpu()) {
    text += Concat("total on the host: ", MemoryText(HeldBytes(plan.lines, "cpu")), "\n");
  }
  text += Concat("max_model_len: ", plan.max_model_len, "\n");
  if (plan.scores_only) text += "scores only: there is no KV pool\n";
  if (plan.max_generation_len > 0) {
    text += Concat("max_generation_len: ", plan.max_generation_len, "\n");
  }
  for (const std::string& warning : plan.warnings) text += Concat("warning: ", warning, "\n");
  return text;
}

}  // namespace taopd
