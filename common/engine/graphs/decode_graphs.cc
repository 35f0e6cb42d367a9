#include "common/engine/graphs/decode_graphs.h"

#include <absl/time/clock.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/memory/cuda_graphs.h"
#include "common/model/torch_errors.h"
#include "kernels/torch/data_type.h"

namespace taopd {
namespace {

// Padding rows are at every other position of their block: the CPU's kernels store the bfloat16
// values of two positions in one word, which two rows must not write concurrently.
constexpr int64_t kPaddingStride = 2;
static_assert(kMaxPaddingRows * kPaddingStride <= kBlockTokens);

}  // namespace

DecodeGraphs::DecodeGraphs(std::shared_ptr<Decoder> decoder, std::unique_ptr<GraphBackend> backend,
                           const Options& options)
    : decoder_(std::move(decoder)),
      backend_(std::move(backend)),
      options_(options),
      scratch_table_(static_cast<size_t>(KvBlocksFor(kBlockTokens)), options.scratch_block) {
  TAOPD_CHECK(!options_.sizes.empty());
}

DecodeGraphs::~DecodeGraphs() { Drop(); }

void DecodeGraphs::Drop() {
  graphs_.clear();
  hidden_TH_ = at::Tensor();
  addresses_.clear();
}

DecodeRow DecodeGraphs::PaddingRow(int64_t i) const {
  // While a size is recorded, all rows are padding and some share a position, but their results are
  // not used.
  return {/*token_id=*/0, i * kPaddingStride % kBlockTokens, scratch_table_.data()};
}

std::vector<const void*> DecodeGraphs::Addresses(const KvPages& pages) const {
  std::vector<const void*> addresses = decoder_->InferenceAddresses();
  for (int64_t layer = 0; layer < decoder_->config().num_hidden_layers; ++layer) {
    if (pages.layout() == KvPages::Layout::kKernel) {
      addresses.push_back(pages.blocks(layer));
    } else {
      addresses.push_back(pages.keys(layer).const_data_ptr());
      addresses.push_back(pages.values(layer).const_data_ptr());
    }
  }
  return addresses;
}

void DecodeGraphs::CaptureSize(int64_t size, KvPages* pages) {
  DecodeInputs::Shape shape;
  shape.num_rows = size;
  shape.max_len = std::max(options_.max_seq_len, kBlockTokens);  // padding rows use a whole block
  shape.num_positions = std::max(options_.max_model_len, shape.max_len);
  Graph graph;
  graph.inputs =
      std::make_unique<DecodeInputs>(decoder_->paged_config(), shape, *pages, decoder_->device());
  std::vector<DecodeRow> rows;
  for (int64_t i = 0; i < size; ++i) rows.push_back(PaddingRow(i));
  graph.inputs->Set(rows);
  // The function refers to nothing of the current step, and to nothing here that may change.
  graph.step = backend_->Record([decoder = decoder_.get(), inputs = graph.inputs.get(), pages,
                                 out_TH = hidden_TH_.narrow(0, 0, size)] {
    PagedBatch batch;
    batch.token_ids_T = inputs->token_ids_T();
    batch.inputs = inputs;
    out_TH.copy_(decoder->Infer(batch, pages));
  });
  graphs_[size] = std::move(graph);
}

void DecodeGraphs::Capture(KvPages* pages, const std::function<void()>& progress) {
  const absl::Time begun_at = absl::Now();
  Drop();
  backend_->BeginSet();
  hidden_TH_ = at::empty({options_.sizes.back(), decoder_->config().hidden_size},
                         at::TensorOptions().dtype(decoder_->dtype()).device(decoder_->device()));
  try {
    for (size_t i = options_.sizes.size(); i-- > 0;) {
      CaptureSize(options_.sizes[i], pages);
      if (progress) progress();
    }
  } catch (...) {
    Drop();
    backend_->EndSet();
    throw;
  }
  backend_->EndSet();
  addresses_ = Addresses(*pages);
  ++stats_.num_captures;
  std::string sizes;
  for (const int64_t size : options_.sizes) sizes += Concat(sizes.empty() ? "" : " ", size);
  LogInfo("CUDA graphs captured", {{"batch_sizes", sizes},
                                   {"max_seq_len", options_.max_seq_len},
                                   {"num_captures", stats_.num_captures},
                                   {"seconds", absl::ToDoubleSeconds(absl::Now() - begun_at)},
                                   {"replayed_steps", stats_.replayed_steps},
                                   {"eager_steps", stats_.eager_steps}});
}

bool DecodeGraphs::CaptureAgain(KvPages* pages, const std::function<void()>& progress) {
  try {
    Capture(pages, progress);
    return true;
  } catch (const std::exception& error) {
    LogError("capturing CUDA graphs again failed; decoding continues without them",
             {{"error", MessageOf(error)}});
  }
  failed_ = true;
  return false;
}

int64_t DecodeGraphs::SizeFor(const std::vector<ScheduledRows>& rows) const {
  if (failed_) return 0;
  for (const ScheduledRows& scheduled : rows) {
    if (scheduled.count != 1 || scheduled.first >= options_.max_seq_len) return 0;
  }
  return PaddedSize(options_.sizes, static_cast<int64_t>(rows.size()));
}

at::Tensor DecodeGraphs::Run(const std::vector<ScheduledRows>& rows, KvPages* pages,
                             const std::function<void()>& progress) {
  const int64_t size = SizeFor(rows);
  const bool is_current = size == 0 || (!graphs_.empty() && addresses_ == Addresses(*pages));
  if (size == 0 || (!is_current && !CaptureAgain(pages, progress))) {
    ++stats_.eager_steps;
    return at::Tensor();
  }
  const auto num_rows = static_cast<int64_t>(rows.size());
  std::vector<DecodeRow> filled;
  for (const ScheduledRows& scheduled : rows) {
    filled.push_back({scheduled.sequence->token(scheduled.first), scheduled.first,
                      scheduled.sequence->blocks.data()});
  }
  for (int64_t i = num_rows; i < size; ++i) filled.push_back(PaddingRow(i - num_rows));
  const Graph& graph = graphs_.at(size);
  graph.inputs->Set(filled);
  graph.step->Replay();
  ++stats_.replayed_steps;
  stats_.padding_rows += static_cast<uint64_t>(size - num_rows);
  return hidden_TH_.narrow(0, 0, num_rows);
}

GraphStats DecodeGraphs::stats() const {
  GraphStats stats = stats_;
  stats.num_graphs = static_cast<int64_t>(graphs_.size());
  return stats;
}

absl::StatusOr<std::unique_ptr<DecodeGraphs>> MakeDecodeGraphs(
    const std::shared_ptr<Decoder>& decoder, const EngineOptions& options,
    const EngineLimits& limits, int64_t num_blocks, std::unique_ptr<GraphBackend> backend) {
  TAOPD_ASSIGN_OR_RETURN(const bool used,
                         UsesCudaGraphs(options.cuda_graphs, decoder->config(),
                                        {.dtype = DataTypeOf(decoder->dtype()),
                                         .on_cpu = decoder->device().is_cpu() && backend == nullptr,
                                         .scores_only = num_blocks == 0,
                                         .kernels = options.kernels,
                                         .tensor_parallel_size = options.tensor_parallel_size}));
  if (!used) return nullptr;
  if (backend == nullptr) {
    TAOPD_ASSIGN_OR_RETURN(backend, MakeCudaGraphBackend(decoder->device()));
  }
  DecodeGraphs::Options graphs;
  graphs.sizes = CaptureSizes(
      LargestCaptureSize(options.cuda_graphs, limits.max_num_seqs, limits.max_num_batched_tokens));
  graphs.max_seq_len = std::min(options.cuda_graphs.max_seq_len, limits.max_generation_len);
  graphs.max_model_len = limits.max_model_len;
  graphs.scratch_block = static_cast<int32_t>(num_blocks);
  return std::make_unique<DecodeGraphs>(decoder, std::move(backend), graphs);
}

}  // namespace taopd
