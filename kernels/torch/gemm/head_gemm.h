// The three matrix products of a language-model head, with float32 results from float32 or bfloat16
// inputs. bf16 logits would put 4 to 36 % of error into a reverse KL's gradient.
//
// Shapes: C rows of a chunk, H hidden, V vocabulary.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace taopd {

// Throws c10::Error unless hidden [N, H] and lm_head [V, H] are float32, bfloat16 or (without a
// gradient) float16, of one dtype, on one device, and V fits int32.
void CheckHeadInputs(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH);

// Rows per chunk so that `buffers` tensors of float32 [rows, V] stay within workspace_bytes; at
// least 1.
int64_t RowsPerChunk(int64_t workspace_bytes, int64_t vocabulary_size, int64_t num_buffers);

// Rows per task of at::parallel_for: small vocabularies are not worth a thread per row.
int64_t RowsPerTask(int64_t vocabulary_size);

// Logits on the CPU by the blocks of head_gemm_cpu.h, which also says what does not depend on what;
// Backward by ATen, float32 only there (the student's head on the CPU is student_head_cpu.h).
class HeadGemm {
 public:
  explicit HeadGemm(at::Tensor lm_head_VH);

  // logits = hidden lm_head^T, float32; the elements of a row of logits are adjacent.
  void Logits(const at::Tensor& hidden_CH, at::Tensor logits_CV) const;
  // Returns d_hidden = d_logits lm_head, float32 [C, H], and d_lm_head += d_logits^T hidden
  // (float32, contiguous; skipped when undefined).
  at::Tensor Backward(const at::Tensor& d_logits_CV, const at::Tensor& hidden_CH,
                      at::Tensor d_lm_head_VH) const;

 private:
  at::Tensor lm_head_VH_;
};

}  // namespace taopd
