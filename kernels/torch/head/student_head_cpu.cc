#include "kernels/torch/head/student_head_cpu.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "kernels/cpu/head/student_chunk.h"
#include "kernels/torch/data_type.h"
#include "kernels/torch/head/head_gemm_sparse.h"
#include "kernels/torch/parallel_loop.h"
#include "kernels/torch/tensor_data.h"
#include "taopd/base/round_up.h"

namespace taopd {
namespace {

// Each chunk reads lm_head twice and reads and writes all of d_lm_head, so there should be few
// chunks of equal size. They are whole tiles of every matrix product (head_gemm_cpu.h) if that adds
// no chunk.
int64_t RowsOfChunk(int64_t num_rows, int64_t max_rows, int64_t tile) {
  if (num_rows <= max_rows) return std::max<int64_t>(1, num_rows);
  const int64_t num_chunks = CeilDiv(num_rows, max_rows);
  const int64_t rows = CeilDiv(num_rows, num_chunks);
  const int64_t in_tiles = RoundUp(rows, tile);
  return in_tiles <= max_rows ? in_tiles : rows;
}

// The rows of a tile of a small head. The logits of this many rows stay in the cache along with it.
constexpr int64_t kRowsOfTile = 256;
// The number of tiles whose gradients of the head exist at a time.
constexpr int64_t kMaxTiles = 32;

// The parts of a call that all of its chunks of rows share.
struct HeadCall {
  at::Tensor inputs_NH, weights_VH;
  StudentTargets targets;
  cpu::StudentChunkOptions options;
  const cpu::PackedGemm* gemm;
  bool keeps_exps = true;  // otherwise logits are computed twice
  HeadOutput* output;
};

HeadCall MakeHeadCall(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                      const HeadTargets& targets, const HeadOptions& options,
                      const cpu::PackedGemm& gemm, HeadOutput* output) {
  // On the CPU, float16 models are supported but not fast: the whole head is converted to float32.
  const at::ScalarType dtype =
      lm_head_VH.scalar_type() == at::kHalf ? at::kFloat : lm_head_VH.scalar_type();
  HeadCall call;
  call.weights_VH = lm_head_VH.detach().to(dtype).contiguous();
  call.inputs_NH = hidden_NH.detach().to(dtype);
  call.targets = PointersTo(targets);
  call.gemm = &gemm;
  call.output = output;
  call.options.objective = options.objective;
  call.options.temperature = options.temperature;
  call.options.top_k_metrics = options.top_k_metrics;
  call.options.vocab_size = call.weights_VH.size(0);
  call.options.block_size = kVocabularyBlock;
  call.options.dtype = DataTypeOf(dtype);
  call.options.products = HasDenseGradient(options.objective) ||
                          !SparseBackwardIsCheaper(call.targets.k, call.options.vocab_size);
  const int64_t num_rows = hidden_NH.size(0);
  output->loss_N = at::empty({num_rows}, at::kFloat);
  output->metrics_NM = at::empty({num_rows, kNumHeadMetrics}, at::kFloat);
  output->d_hidden_NH = at::empty(hidden_NH.sizes(), hidden_NH.options());
  return call;
}

// Returns the memory for the exponentials of a chunk's rows; undefined if none are kept.
at::Tensor ExpsOf(const HeadCall& call, int64_t chunk_rows) {
  if (!call.options.products || !call.keeps_exps) return at::Tensor();
  return at::empty({call.options.vocab_size, chunk_rows}, call.weights_VH.options());
}

cpu::StudentChunkScratch& ScratchOfThread() {
  thread_local cpu::StudentChunkScratch scratch;
  return scratch;
}

// Computes rows [begin, begin + num) of the call. Adds their part to d_lm_head_VH, if it is
// defined.
void RunChunk(const HeadCall& call, int64_t begin, int64_t num, cpu::StudentChunk* chunk,
              const at::Tensor& d_lm_head_VH) {
  float* loss = call.output->loss_N.mutable_data_ptr<float>() + begin;
  float* metrics =
      call.output->metrics_NM.mutable_data_ptr<float>() + begin * int64_t{kNumHeadMetrics};
  const at::Tensor hidden_CH = call.inputs_NH.narrow(0, begin, num);
  const cpu::RowStatus status = chunk->Start(RowsFrom(call.targets, begin), num);
  TORCH_CHECK(status == cpu::RowStatus::kOk, cpu::Describe(status));
  CpuHeadLogitBlocks(
      hidden_CH, call.weights_VH,
      [&](int64_t block, float* logits, int64_t stride) {
        chunk->AddBlock(block, logits, stride, &ScratchOfThread());
      },
      *call.gemm);
  constexpr int64_t kGroup = cpu::kRankedRows;
  ParallelLoop(CeilDiv(num, kGroup), 1, [&](int64_t first_group, int64_t last_group) {
    const int64_t first = first_group * kGroup, last = std::min(num, last_group * kGroup);
    chunk->FinishRows(first, last, &ScratchOfThread(), loss + first,
                      metrics + first * kNumHeadMetrics);
  });
  const auto compute_exps = [&](int64_t block, float* logits, int64_t stride, void* exps) {
    chunk->MakeExps(block, logits, stride, &ScratchOfThread(), exps);
  };
  call.output->d_hidden_NH.narrow(0, begin, num)
      .copy_(call.options.products ? CpuHeadBackward(chunk->gradient(), hidden_CH, call.weights_VH,
                                                     d_lm_head_VH, *call.gemm, compute_exps)
                                   : CpuHeadBackwardSparse(chunk->entries(), hidden_CH,
                                                           call.weights_VH, d_lm_head_VH));
}

// Computes one chunk after the other; the threads share its blocks of the vocabulary.
void RunInChunks(const HeadCall& call, int64_t chunk_rows, const at::Tensor& d_lm_head_VH) {
  const int64_t num_rows = call.inputs_NH.size(0);
  const at::Tensor exps_VC = ExpsOf(call, chunk_rows);
  cpu::StudentChunk chunk(call.options, MutableDataOrNull(exps_VC));
  for (int64_t begin = 0; begin < num_rows; begin += chunk_rows) {
    RunChunk(call, begin, std::min(chunk_rows, num_rows - begin), &chunk, d_lm_head_VH);
  }
}

// A small head has too few blocks to share them evenly. The threads share the rows instead, in
// tiles that do not depend on the number of threads. The tiles' gradients of the head are added in
// order.
void RunInTiles(const HeadCall& call, const at::Tensor& d_lm_head_VH) {
  const int64_t num_rows = call.inputs_NH.size(0);
  for (int64_t first = 0; first < num_rows; first += kMaxTiles * kRowsOfTile) {
    const int64_t num = std::min(kMaxTiles * kRowsOfTile, num_rows - first);
    // The tiles are equal in size, and their number is a multiple of typical numbers of threads. If
    // there is only one tile, the threads share its blocks.
    const int64_t num_tiles =
        num <= kRowsOfTile / 4 ? 1 : std::min(kMaxTiles, RoundUp(CeilDiv(num, kRowsOfTile), 4));
    at::Tensor d_lm_heads_TVH;
    if (d_lm_head_VH.defined()) {
      d_lm_heads_TVH = at::empty({num_tiles, call.weights_VH.size(0), call.weights_VH.size(1)},
                                 d_lm_head_VH.options());
    }
    ParallelLoop(num_tiles, 1, [&](int64_t begin_tile, int64_t end_tile) {
      const at::NoGradGuard no_grad;
      const at::Tensor exps_VC = ExpsOf(call, CeilDiv(num, num_tiles));
      cpu::StudentChunk chunk(call.options, MutableDataOrNull(exps_VC));
      for (int64_t tile = begin_tile; tile < end_tile; ++tile) {
        const int64_t begin = num * tile / num_tiles, end = num * (tile + 1) / num_tiles;
        at::Tensor d_lm_head_of_tile_VH;
        if (d_lm_heads_TVH.defined()) d_lm_head_of_tile_VH = d_lm_heads_TVH.select(0, tile).zero_();
        if (begin == end) continue;
        RunChunk(call, first + begin, end - begin, &chunk, d_lm_head_of_tile_VH);
      }
    });
    for (int64_t tile = 0; d_lm_head_VH.defined() && tile < num_tiles; ++tile) {
      d_lm_head_VH.add_(d_lm_heads_TVH.select(0, tile));
    }
  }
}

}  // namespace

HeadOutput StudentHeadCpu(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                          const HeadTargets& targets, const HeadOptions& options,
                          const at::Tensor& d_lm_head_VH, const cpu::PackedGemm& gemm) {
  HeadOutput output;
  HeadCall call = MakeHeadCall(hidden_NH, lm_head_VH, targets, options, gemm, &output);
  const int64_t num_rows = hidden_NH.size(0);
  const int64_t row_bytes = cpu::StudentChunk::BytesPerRow(call.options, call.targets.k) +
                            CpuHeadBackwardBytesPerRow(call.weights_VH);
  const int64_t gradient_bytes = call.weights_VH.numel() * static_cast<int64_t>(sizeof(float));
  // The bytes of all tiles, so that the choice does not depend on the number of threads.
  const int64_t tiles_bytes = kMaxTiles * (gradient_bytes + kRowsOfTile * row_bytes);
  if (IsSmallHead(call.weights_VH) && tiles_bytes <= options.workspace_bytes) {
    RunInTiles(call, d_lm_head_VH);
  } else {
    int64_t max_rows = std::max<int64_t>(1, options.workspace_bytes / row_bytes);
    if (max_rows < num_rows && call.options.products && CpuHeadRecomputes(call.weights_VH, gemm)) {
      call.keeps_exps = false;
      const int64_t fewer_bytes =
          cpu::StudentChunk::BytesPerRow(call.options, call.targets.k, /*with_exps=*/false) +
          CpuHeadBackwardBytesPerRow(call.weights_VH);
      max_rows = std::max<int64_t>(1, options.workspace_bytes / fewer_bytes);
    }
    RunInChunks(call, RowsOfChunk(num_rows, max_rows, CpuHeadRowTile(call.weights_VH, gemm)),
                d_lm_head_VH);
  }
  return output;
}

}  // namespace taopd
