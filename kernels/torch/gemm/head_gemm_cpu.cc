#include "kernels/torch/gemm/head_gemm_cpu.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <vector>

#include "kernels/cpu/gemm/panel_gemm.h"
#include "kernels/cpu/layers/layer_loops.h"

namespace taopd {
namespace {

using at::BFloat16;
using cpu::ElementOrder;

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

at::Tensor Buffer(int64_t num, at::ScalarType dtype) {
  return at::empty({num}, at::TensorOptions().dtype(dtype));
}

const cpu::Bfloat16Bits* Bits(const BFloat16* data) {
  return reinterpret_cast<const cpu::Bfloat16Bits*>(data);
}
cpu::Bfloat16Bits* Bits(BFloat16* data) { return reinterpret_cast<cpu::Bfloat16Bits*>(data); }

int64_t NumBlocks(int64_t vocabulary_size) {
  return (vocabulary_size + kVocabularyBlock - 1) / kVocabularyBlock;
}

// Tokens of block i.
int64_t SizeOfBlock(int64_t i, int64_t vocabulary_size) {
  return std::min(kVocabularyBlock, vocabulary_size - i * kVocabularyBlock);
}

// Of rows in a cache: whole vectors, and a cache line apart from a power of two, at which they
// would share few of its sets.
int64_t BlockStride(int64_t columns) { return RoundUp(columns, 16) + 16; }

// Calls f(begin, end) for contiguous ranges of blocks, one a thread.
template <typename F>
void ForBlockRanges(int64_t vocabulary_size, const F& f) {
  at::parallel_for(0, NumBlocks(vocabulary_size), 1, f);
}

// logits[n][first + v] = block[v][n] for num rows of the block.
void StoreTransposed(const float* block, int64_t block_stride, int64_t num, int64_t num_rows,
                     float* logits, int64_t logits_stride) {
  constexpr int64_t kColumns = 16;  // of the block: one cache line
  for (int64_t begin = 0; begin < num_rows; begin += kColumns) {
    const int64_t end = std::min(num_rows, begin + kColumns);
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t v = 0; v < num; ++v) logits[n * logits_stride + v] = block[v * block_stride + n];
    }
  }
}

// ---- float32 panels ---------------------------------------------------------------------------

// The weights as the panel kernels read them: a block of rows, as they lie or widened.
struct Weights {
  explicit Weights(const at::Tensor& lm_head_VH)
      : bf16(lm_head_VH.scalar_type() == at::kBFloat16),
        vocabulary_size(lm_head_VH.size(0)),
        hidden_size(lm_head_VH.size(1)),
        data(lm_head_VH.const_data_ptr()) {}

  const BFloat16* Bf16Row(int64_t v) const {
    return static_cast<const BFloat16*>(data) + v * hidden_size;
  }
  const float* FloatRow(int64_t v) const {
    return static_cast<const float*>(data) + v * hidden_size;
  }

  bool bf16;
  int64_t vocabulary_size, hidden_size;
  const void* data;
};

using TakeBlock = std::function<void(int64_t block, float* logits, int64_t stride)>;

void PanelLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH, const TakeBlock& take) {
  const cpu::PanelGemm& gemm = cpu::BestPanelGemm();
  const Weights weights(lm_head_VH);
  const int64_t num_rows = hidden_CH.size(0);
  const int64_t h = weights.hidden_size;
  const at::Tensor hidden_panels = Buffer(RoundUp(num_rows, gemm.panel_width) * h, at::kFloat);
  const at::Tensor wide_CH = hidden_CH.to(at::kFloat).contiguous();
  gemm.pack(wide_CH.const_data_ptr<float>(), ElementOrder::kColumns, h, h, num_rows,
            hidden_panels.mutable_data_ptr<float>());
  const float* panels = hidden_panels.const_data_ptr<float>();
  ForBlockRanges(weights.vocabulary_size, [&](int64_t begin, int64_t end) {
    // Zeros: the columns beyond the rows are read, not used.
    const int64_t stride = BlockStride(num_rows);
    const at::Tensor block_buffer = at::zeros({kVocabularyBlock * stride}, at::kFloat);
    float* block = block_buffer.mutable_data_ptr<float>();
    const int64_t wide_stride = BlockStride(h);
    const at::Tensor wide_buffer =
        Buffer(weights.bf16 ? kVocabularyBlock * wide_stride : 0, at::kFloat);
    float* wide = wide_buffer.mutable_data_ptr<float>();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * kVocabularyBlock;
      const int64_t num = SizeOfBlock(i, weights.vocabulary_size);
      const float* a = nullptr;
      int64_t a_stride = h;
      if (weights.bf16) {
        for (int64_t v = 0; v < num; ++v) {
          gemm.widen(Bits(weights.Bf16Row(first + v)), h, wide + v * wide_stride);
        }
        a = wide;
        a_stride = wide_stride;
      } else {
        a = weights.FloatRow(first);
      }
      gemm.multiply(a, ElementOrder::kRows, a_stride, panels, num, num_rows, h, block, stride,
                    /*accumulate=*/false);
      take(i, block, stride);
    }
  });
}

// to[v * num_rows + n] = factor_n e_vn for one block's tokens.
void ScaleBlock(const cpu::LogitGradient& d_logits, int64_t block, int64_t v, float* to) {
  const cpu::PanelGemm& gemm = cpu::BestPanelGemm();
  const int64_t num_rows = d_logits.num_rows;
  const float* factors = d_logits.factors_BC + block * num_rows;
  const int64_t at = (block * kVocabularyBlock + v) * num_rows;
  if (d_logits.dtype == DataType::kBFloat16) {
    gemm.scale_bf16(static_cast<const cpu::Bfloat16Bits*>(d_logits.exps_VC) + at, factors, num_rows,
                    to);
  } else {
    gemm.scale(static_cast<const float*>(d_logits.exps_VC) + at, factors, num_rows, to);
  }
}

// d_lm_head rows that are updated at a time: their cache lines are read and written in order.
constexpr int64_t kGradientRows = 48;

// hidden_panels: of row_scale_n hidden_n.
void PanelBackward(const cpu::LogitGradient& d_logits, const at::Tensor& lm_head_VH,
                   const at::Tensor& d_lm_head_VH, int64_t slice, int64_t num_slices,
                   const float* hidden_panels, float* d_hidden) {
  const cpu::PanelGemm& gemm = cpu::BestPanelGemm();
  const Weights weights(lm_head_VH);
  const int64_t num_rows = d_logits.num_rows;
  const int64_t h = weights.hidden_size;
  float* d_lm_head = d_lm_head_VH.defined() ? d_lm_head_VH.mutable_data_ptr<float>() : nullptr;
  const at::Tensor panel_buffer =
      Buffer(kVocabularyBlock * RoundUp(h, gemm.panel_width), at::kFloat);
  float* panels = panel_buffer.mutable_data_ptr<float>();
  const at::Tensor block_buffer = Buffer(kVocabularyBlock * num_rows, at::kFloat);
  float* block = block_buffer.mutable_data_ptr<float>();

  const int64_t num_blocks = NumBlocks(weights.vocabulary_size);
  const int64_t end_block = num_blocks * (slice + 1) / num_slices;
  for (int64_t i = num_blocks * slice / num_slices; i < end_block; ++i) {
    const int64_t first = i * kVocabularyBlock;
    const int64_t num = SizeOfBlock(i, weights.vocabulary_size);
    for (int64_t v = 0; v < num; ++v) ScaleBlock(d_logits, i, v, block + v * num_rows);
    if (weights.bf16) {
      gemm.pack_bf16(Bits(weights.Bf16Row(first)), ElementOrder::kRows, h, num, h, panels);
    } else {
      gemm.pack(weights.FloatRow(first), ElementOrder::kRows, h, num, h, panels);
    }
    gemm.multiply(block, ElementOrder::kColumns, num_rows, panels, num_rows, h, num, d_hidden, h,
                  /*accumulate=*/true);
    for (int64_t v = 0; d_lm_head != nullptr && v < num; v += kGradientRows) {
      gemm.multiply(block + v * num_rows, ElementOrder::kRows, num_rows, hidden_panels,
                    std::min(kGradientRows, num - v), h, num_rows, d_lm_head + (first + v) * h, h,
                    /*accumulate=*/true);
    }
  }
}

// ---- bfloat16 pairs -----------------------------------------------------------------------------

// Products are cut to at most this many columns, so that a block of B stays in the cache; row
// counts are rounded up to kPairRows, so that few shapes of the kernel are ever generated.
constexpr int64_t kPairColumns = 64;
constexpr int64_t kPairRows = 32;

// out[(k / 2 * num_n + n) * 2 + k % 2] = B(k, n) for k < padded_k; zero outside of [num_k, num_n].
// B(k, n) at b[k * k_step + n * n_step].
void PackPairs(const BFloat16* b, int64_t k_step, int64_t n_step, int64_t num_k, int64_t num_n,
               int64_t padded_k, int64_t padded_n, BFloat16* out) {
  for (int64_t k = 0; k < padded_k; k += 2) {
    BFloat16* to = out + k * padded_n;
    const BFloat16* even = b + k * k_step;
    const int64_t present = std::clamp<int64_t>(num_k - k, 0, 2);
    const int64_t columns = present == 2 ? num_n : 0;
    if (n_step == 1) {
      cpu::BestPanelGemm().interleave(Bits(even), Bits(even + k_step), columns, Bits(to));
    } else {
      for (int64_t n = 0; n < columns; ++n) {
        to[2 * n] = even[n * n_step];
        to[2 * n + 1] = even[k_step + n * n_step];
      }
    }
    for (int64_t n = columns; n < padded_n; ++n) {
      to[2 * n] = present > 0 && n < num_n ? even[n * n_step] : BFloat16(0);
      to[2 * n + 1] = BFloat16(0);
    }
  }
}

void MultiplyInColumns(const Bfloat16Gemm& gemm, int64_t m, int64_t n, int64_t k, int64_t lda,
                       int64_t ldb, int64_t ldc, bool accumulate, const BFloat16* a,
                       const BFloat16* b, float* c) {
  for (int64_t begin = 0; begin < n; begin += kPairColumns) {
    gemm.multiply(m, std::min(kPairColumns, n - begin), k, lda, ldb, ldc, accumulate, a,
                  b + 2 * begin, c + begin);
  }
}

void Release(const Bfloat16Gemm& gemm) {
  if (gemm.release != nullptr) gemm.release();
}

void PairLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH, const TakeBlock& take,
                const Bfloat16Gemm& gemm) {
  const Weights weights(lm_head_VH);
  const int64_t num_rows = hidden_CH.size(0);
  const int64_t h = weights.hidden_size;
  const int64_t padded_rows = RoundUp(num_rows, kPairRows);
  const at::Tensor hidden = hidden_CH.contiguous();
  const at::Tensor pair_buffer = Buffer(padded_rows * h, at::kBFloat16);
  PackPairs(hidden.const_data_ptr<BFloat16>(), 1, h, h, num_rows, h, padded_rows,
            pair_buffer.mutable_data_ptr<BFloat16>());
  const BFloat16* pairs = pair_buffer.const_data_ptr<BFloat16>();
  ForBlockRanges(weights.vocabulary_size, [&](int64_t begin, int64_t end) {
    const int64_t block_stride = BlockStride(padded_rows);
    const at::Tensor block_buffer = Buffer(kVocabularyBlock * block_stride, at::kFloat);
    float* block = block_buffer.mutable_data_ptr<float>();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t num = SizeOfBlock(i, weights.vocabulary_size);
      MultiplyInColumns(gemm, num, padded_rows, h, h, padded_rows, block_stride,
                        /*accumulate=*/false, weights.Bf16Row(i * kVocabularyBlock), pairs, block);
      take(i, block, block_stride);
    }
    Release(gemm);
  });
}

// hidden_pairs: of row_scale_n hidden_n.
void PairBackward(const cpu::LogitGradient& d_logits, const at::Tensor& lm_head_VH,
                  const at::Tensor& d_lm_head_VH, int64_t slice, int64_t num_slices,
                  const BFloat16* hidden_pairs, float* d_hidden, const Bfloat16Gemm& gemm) {
  const Weights weights(lm_head_VH);
  const int64_t num_rows = d_logits.num_rows;
  const int64_t padded_rows = RoundUp(num_rows, kPairRows);
  const int64_t h = weights.hidden_size;
  float* d_lm_head = d_lm_head_VH.defined() ? d_lm_head_VH.mutable_data_ptr<float>() : nullptr;
  const at::Tensor pair_buffer = Buffer(kVocabularyBlock * h, at::kBFloat16);
  BFloat16* pairs = pair_buffer.mutable_data_ptr<BFloat16>();
  // The block's gradient by vocabulary [block, C] and by rows [C, block].
  const at::Tensor token_buffer = Buffer(num_rows, at::kFloat);
  float* token = token_buffer.mutable_data_ptr<float>();
  const at::Tensor column_buffer = at::zeros({padded_rows * kVocabularyBlock}, at::kBFloat16);
  const at::Tensor row_buffer = at::zeros({padded_rows * kVocabularyBlock}, at::kBFloat16);
  BFloat16* by_column = column_buffer.mutable_data_ptr<BFloat16>();
  BFloat16* by_row = row_buffer.mutable_data_ptr<BFloat16>();

  const auto narrow = cpu::BestLayerLoops(DataType::kBFloat16).narrow;
  const int64_t num_blocks = NumBlocks(weights.vocabulary_size);
  const int64_t end_block = num_blocks * (slice + 1) / num_slices;
  for (int64_t i = num_blocks * slice / num_slices; i < end_block; ++i) {
    const int64_t first = i * kVocabularyBlock;
    const int64_t num = SizeOfBlock(i, weights.vocabulary_size);
    const int64_t padded_num = RoundUp(num, 2);
    for (int64_t v = 0; v < num; ++v) {
      ScaleBlock(d_logits, i, v, token);
      narrow(token, num_rows, by_column + v * padded_rows);  // exact: powers of two
    }
    for (int64_t n = 0; n < num_rows; ++n) {
      BFloat16* row = by_row + n * kVocabularyBlock;
      for (int64_t v = 0; v < num; ++v) row[v] = by_column[v * padded_rows + n];
      for (int64_t v = num; v < padded_num; ++v) row[v] = BFloat16(0);
    }
    PackPairs(weights.Bf16Row(first), h, 1, num, h, padded_num, h, pairs);
    MultiplyInColumns(gemm, padded_rows, h, padded_num, kVocabularyBlock, h, h, /*accumulate=*/true,
                      by_row, pairs, d_hidden);
    if (d_lm_head == nullptr) continue;
    MultiplyInColumns(gemm, num, h, padded_rows, padded_rows, h, h, /*accumulate=*/true, by_column,
                      hidden_pairs, d_lm_head + first * h);
  }
  Release(gemm);
}

// ---- brgemm -------------------------------------------------------------------------------------

#ifdef CPUBLAS_BRGEMM_BF16BF16F32

void BrgemmMultiply(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc,
                    bool accumulate, const BFloat16* a, const BFloat16* b, float* c) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, accumulate, a, b, c);
}

void BrgemmRelease() { at::native::cpublas::brgemm_release(); }

bool ProcessorMultipliesBfloat16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") &&
         (__builtin_cpu_supports("avx512bf16") || __builtin_cpu_supports("amx-bf16"));
#else
  return false;
#endif
}

// Whether brgemm does what Bfloat16Multiply says, on a product with odd sizes, accumulated.
std::string ProblemOfBrgemm() {
  constexpr int64_t kM = 5, kN = 35, kK = 70;
  std::vector<BFloat16> a(kM * kK), b(kK * kN);
  std::vector<float> c(kM * kN, 1.0f);
  for (size_t i = 0; i < a.size(); ++i) a[i] = BFloat16(static_cast<float>(i % 17) - 8);
  for (size_t i = 0; i < b.size(); ++i) b[i] = BFloat16(static_cast<float>(i % 13) / 4 - 1);
  try {
    BrgemmMultiply(kM, kN, kK, kK, kN, kN, true, a.data(), b.data(), c.data());
    BrgemmRelease();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {  // oneDNN's
    return error.what();
  }
  for (int64_t m = 0; m < kM; ++m) {
    for (int64_t n = 0; n < kN; ++n) {
      float sum = 1;  // exact in float32: small multiples of 1/4
      for (int64_t k = 0; k < kK; ++k) {
        sum +=
            static_cast<float>(a[m * kK + k]) * static_cast<float>(b[(k / 2 * kN + n) * 2 + k % 2]);
      }
      if (c[m * kN + n] != sum) return "its product is not the exact one";
    }
  }
  return "";
}

Bfloat16Gemm ChooseBfloat16Gemm() {
  if (!ProcessorMultipliesBfloat16()) return {};
  const std::string problem = ProblemOfBrgemm();
  if (problem.empty()) return {BrgemmMultiply, BrgemmRelease};
  TORCH_WARN("bfloat16 heads are computed in float32: this processor multiplies bfloat16, but ",
             "brgemm does not work here: ", problem);
  return {};
}

#else

Bfloat16Gemm ChooseBfloat16Gemm() { return {}; }

#endif

// Pairs need an even number of hidden elements.
bool UsePairs(const at::Tensor& lm_head_VH, const Bfloat16Gemm& bfloat16) {
  return lm_head_VH.scalar_type() == at::kBFloat16 && bfloat16.multiply != nullptr &&
         lm_head_VH.size(1) % 2 == 0;
}

}  // namespace

const Bfloat16Gemm& BestBfloat16Gemm() {
  static const Bfloat16Gemm best = ChooseBfloat16Gemm();
  return best;
}

std::string CpuHeadGemmName(at::ScalarType dtype) {
  if (dtype == at::kBFloat16 && BestBfloat16Gemm().multiply != nullptr) return "bfloat16 brgemm";
  return std::string(dtype == at::kBFloat16 ? "bfloat16 widened to " : "") + "float32 panels, " +
         cpu::BestPanelGemm().name;
}

int64_t CpuHeadRowTile(const at::Tensor& lm_head_VH, const Bfloat16Gemm& bfloat16) {
  if (UsePairs(lm_head_VH, bfloat16)) return kPairRows;
  return std::max<int64_t>(cpu::BestPanelGemm().panel_width, 16);
}

int64_t CpuHeadBackwardBytesPerRow(int64_t hidden_size) {
  // hidden as float32 and as panels; one partial d_hidden a thread.
  return hidden_size * static_cast<int64_t>(sizeof(float)) * (2 + at::get_num_threads());
}

void CpuHeadLogitBlocks(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                        const TakeBlock& take, const Bfloat16Gemm& bfloat16) {
  if (hidden_CH.size(0) == 0) return;
  const at::Tensor weights_VH = lm_head_VH.contiguous();
  if (UsePairs(weights_VH, bfloat16)) {
    PairLogits(hidden_CH, weights_VH, take, bfloat16);
  } else {
    PanelLogits(hidden_CH, weights_VH, take);
  }
}

void CpuHeadLogits(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                   const at::Tensor& logits_CV, const Bfloat16Gemm& bfloat16) {
  float* logits = logits_CV.mutable_data_ptr<float>();
  const int64_t num_rows = hidden_CH.size(0);
  const int64_t logits_stride = logits_CV.stride(0);
  CpuHeadLogitBlocks(
      hidden_CH, lm_head_VH,
      [&](int64_t i, const float* block, int64_t stride) {
        StoreTransposed(block, stride, SizeOfBlock(i, lm_head_VH.size(0)), num_rows,
                        logits + i * kVocabularyBlock, logits_stride);
      },
      bfloat16);
}

at::Tensor CpuHeadBackward(const cpu::LogitGradient& d_logits, const at::Tensor& hidden_CH,
                           const at::Tensor& lm_head_VH, const at::Tensor& d_lm_head_VH,
                           const Bfloat16Gemm& bfloat16) {
  const at::Tensor weights_VH = lm_head_VH.contiguous();
  const int64_t num_rows = d_logits.num_rows;
  const int64_t h = weights_VH.size(1);
  TORCH_CHECK(d_logits.block_size == kVocabularyBlock && hidden_CH.size(0) == num_rows &&
                  d_logits.vocabulary_size == weights_VH.size(0),
              "d_logits is [", num_rows, ", ", d_logits.vocabulary_size, "] in blocks of ",
              d_logits.block_size, ", hidden ", hidden_CH.sizes(), ", lm_head ",
              weights_VH.sizes());
  if (num_rows == 0) return at::zeros({0, h}, at::kFloat);
  const at::Tensor row_scale_C1 =
      at::from_blob(const_cast<float*>(d_logits.row_scale_C), {num_rows, 1}, at::kFloat);
  // A row's scale belongs to both products: to hidden's rows in one, to the result's in the other.
  // Contiguous first: a product keeps the order of its factor's dimensions.
  const at::Tensor hidden = hidden_CH.to(at::kFloat).contiguous().mul(row_scale_C1);
  const bool pairs = UsePairs(weights_VH, bfloat16);
  const int64_t padded_rows = pairs ? RoundUp(num_rows, kPairRows) : num_rows;
  at::Tensor packed_hidden;
  if (pairs) {
    packed_hidden = Buffer(padded_rows * h, at::kBFloat16);
    const at::Tensor narrow = hidden.to(at::kBFloat16);
    PackPairs(narrow.const_data_ptr<BFloat16>(), h, 1, num_rows, h, padded_rows, h,
              packed_hidden.mutable_data_ptr<BFloat16>());
  } else {
    const cpu::PanelGemm& gemm = cpu::BestPanelGemm();
    packed_hidden = Buffer(num_rows * RoundUp(h, gemm.panel_width), at::kFloat);
    gemm.pack(hidden.const_data_ptr<float>(), ElementOrder::kRows, h, num_rows, h,
              packed_hidden.mutable_data_ptr<float>());
  }

  const int64_t num_slices =
      std::min<int64_t>(at::get_num_threads(), NumBlocks(weights_VH.size(0)));
  const at::Tensor partial_SCH = at::zeros({num_slices, padded_rows, h}, at::kFloat);
  at::parallel_for(0, num_slices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slice = begin; slice < end; ++slice) {
      float* d_hidden = partial_SCH.mutable_data_ptr<float>() + slice * padded_rows * h;
      if (pairs) {
        PairBackward(d_logits, weights_VH, d_lm_head_VH, slice, num_slices,
                     packed_hidden.const_data_ptr<BFloat16>(), d_hidden, bfloat16);
      } else {
        PanelBackward(d_logits, weights_VH, d_lm_head_VH, slice, num_slices,
                      packed_hidden.const_data_ptr<float>(), d_hidden);
      }
    }
  });
  at::Tensor d_hidden_CH = partial_SCH.select(0, 0).narrow(0, 0, num_rows);
  for (int64_t slice = 1; slice < num_slices; ++slice) {
    d_hidden_CH.add_(partial_SCH.select(0, slice).narrow(0, 0, num_rows));
  }
  return d_hidden_CH.mul_(row_scale_C1);
}

}  // namespace taopd
