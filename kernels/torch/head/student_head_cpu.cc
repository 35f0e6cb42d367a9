#include "kernels/torch/head/student_head_cpu.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/cpu/head/student_chunk.h"
#include "kernels/torch/head/head_gemm_sparse.h"
#include "kernels/torch/head/head_target_pointers.h"

namespace taopd {
namespace {

// Each chunk reads lm_head twice and reads and writes all of d_lm_head, so there should be few and
// equal ones; in whole tiles of every matrix product (head_gemm_cpu.h) where that adds no chunk.
int64_t RowsOfChunk(int64_t num_rows, int64_t max_rows, int64_t tile) {
  if (num_rows <= max_rows) return std::max<int64_t>(1, num_rows);
  const int64_t num_chunks = (num_rows + max_rows - 1) / max_rows;
  const int64_t rows = (num_rows + num_chunks - 1) / num_chunks;
  const int64_t in_tiles = (rows + tile - 1) / tile * tile;
  return in_tiles <= max_rows ? in_tiles : rows;
}

}  // namespace

HeadOutput StudentHeadCpu(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                          const HeadTargets& targets, const HeadOptions& options,
                          const at::Tensor& d_lm_head_VH, const Bfloat16Gemm& bfloat16) {
  const int64_t num_rows = hidden_NH.size(0);
  // float16 on the CPU is for reading such models, not for speed: the head is widened as a whole.
  const at::ScalarType dtype =
      lm_head_VH.scalar_type() == at::kHalf ? at::kFloat : lm_head_VH.scalar_type();
  const at::Tensor weights_VH = lm_head_VH.detach().to(dtype);
  const at::Tensor inputs_NH = hidden_NH.to(dtype);
  const StudentTargets all = PointersTo(targets);

  cpu::StudentChunkOptions chunk_options;
  chunk_options.objective = options.objective;
  chunk_options.temperature = options.temperature;
  chunk_options.top_k_metrics = options.top_k_metrics;
  chunk_options.vocabulary_size = weights_VH.size(0);
  chunk_options.block_size = kVocabularyBlock;
  chunk_options.dtype = dtype == at::kBFloat16 ? DataType::kBFloat16 : DataType::kFloat32;
  chunk_options.products = HasDenseGradient(options.objective) ||
                           !SparseBackwardIsCheaper(all.k, chunk_options.vocabulary_size);
  const int64_t row_bytes = cpu::StudentChunk::BytesPerRow(chunk_options, all.k) +
                            CpuHeadBackwardBytesPerRow(weights_VH.size(1));
  const int64_t max_rows = std::max<int64_t>(1, options.workspace_bytes / row_bytes);
  const int64_t chunk_rows = RowsOfChunk(num_rows, max_rows, CpuHeadRowTile(weights_VH, bfloat16));
  const at::Tensor exps_VC =
      chunk_options.products
          ? at::empty({chunk_options.vocabulary_size, chunk_rows}, weights_VH.options())
          : at::Tensor();
  cpu::StudentChunk chunk(chunk_options, exps_VC.defined() ? exps_VC.mutable_data_ptr() : nullptr);

  HeadOutput output;
  output.loss_N = at::empty({num_rows}, at::kFloat);
  output.metrics_NM = at::empty({num_rows, kNumHeadMetrics}, at::kFloat);
  output.d_hidden_NH = at::empty(hidden_NH.sizes(), hidden_NH.options());
  float* loss = output.loss_N.mutable_data_ptr<float>();
  float* metrics = output.metrics_NM.mutable_data_ptr<float>();
  for (int64_t begin = 0; begin < num_rows; begin += chunk_rows) {
    const int64_t num = std::min(chunk_rows, num_rows - begin);
    const at::Tensor hidden_CH = inputs_NH.narrow(0, begin, num);
    const cpu::RowStatus status = chunk.Start(RowsFrom(all, begin), num);
    TORCH_CHECK(status == cpu::RowStatus::kOk, cpu::Describe(status));
    CpuHeadLogitBlocks(
        hidden_CH, weights_VH,
        [&](int64_t block, float* logits, int64_t stride) {
          thread_local cpu::StudentChunkScratch scratch;
          chunk.TakeBlock(block, logits, stride, &scratch);
        },
        bfloat16);
    at::parallel_for(0, num, 1, [&](int64_t first, int64_t last) {
      cpu::StudentChunkScratch scratch;
      for (int64_t n = first; n < last; ++n) {
        chunk.FinishRow(n, &scratch, loss + begin + n, metrics + (begin + n) * kNumHeadMetrics);
      }
    });
    output.d_hidden_NH.narrow(0, begin, num)
        .copy_(
            chunk_options.products
                ? CpuHeadBackward(chunk.gradient(), hidden_CH, weights_VH, d_lm_head_VH, bfloat16)
                : CpuHeadBackwardSparse(chunk.entries(), hidden_CH, weights_VH, d_lm_head_VH));
  }
  return output;
}

}  // namespace taopd
