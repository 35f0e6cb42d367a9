#include "kernels/torch/attention/cuda_paged_attention.h"

#include <utility>

#include "kernels/torch/data_type.h"
#include "kernels/torch/device_call.h"
#include "kernels/torch/tensor_data.h"
#include "kernels/torch/upload.h"

namespace taopd {
namespace {

constexpr int64_t kLongChunkPairs = 1 << 17;

}  // namespace

bool CudaPagedAttention::Supports(const at::Tensor& keys_BKPD) {
  const int64_t head_size = keys_BKPD.size(-1);
  return head_size % 2 == 0 && head_size <= kMaxHeadSize &&
         (keys_BKPD.scalar_type() == at::kFloat || keys_BKPD.scalar_type() == at::kBFloat16);
}

bool CudaPagedAttention::IsLongChunk(const PagedSequence& sequence) {
  return sequence.num_rows > 1 &&
         sequence.num_rows * (sequence.past_len + sequence.num_rows) >= kLongChunkPairs;
}

CudaPagedAttention::CudaPagedAttention(const std::vector<PagedSequence>& sequences,
                                       int64_t num_heads, int64_t num_kv_heads, int64_t head_size,
                                       at::Device device, const DeviceKernels& kernels,
                                       bool custom_long_chunks)
    : CudaPagedAttention(LayOutPagedStep(sequences, num_heads, num_kv_heads, head_size,
                                         custom_long_chunks ? nullptr : IsLongChunk),
                         /*max_len=*/0, num_heads, num_kv_heads, head_size, device, kernels) {
  if (custom_long_chunks) return;
  for (const PagedSequence& sequence : sequences) {
    if (IsLongChunk(sequence)) long_chunks_.push_back(MakePagedChunk(sequence, device));
  }
}

CudaPagedAttention::CudaPagedAttention(const std::vector<PagedSequence>& sequences, int64_t max_len,
                                       int64_t num_heads, int64_t num_kv_heads, int64_t head_size,
                                       at::Device device)
    : CudaPagedAttention(LayOutDecodeStep(sequences, max_len, num_heads, num_kv_heads, head_size),
                         max_len, num_heads, num_kv_heads, head_size, device, LinkedKernels()) {}

CudaPagedAttention::CudaPagedAttention(PagedStep step, int64_t max_len, int64_t num_heads,
                                       int64_t num_kv_heads, int64_t head_size, at::Device device,
                                       const DeviceKernels& kernels)
    : num_heads_(num_heads),
      num_kv_heads_(num_kv_heads),
      head_size_(head_size),
      max_len_(max_len),
      kernels_(kernels),
      step_(std::move(step)),
      arrays_(Upload(at::tensor(step_.arrays, at::kInt), device)) {
  step_.arrays.clear();
}

void CudaPagedAttention::Refill(const std::vector<PagedSequence>& sequences) {
  const PagedStep step =
      LayOutDecodeStep(sequences, max_len_, num_heads_, num_kv_heads_, head_size_);
  TORCH_CHECK(max_len_ > 0 && step.num_rows == step_.num_rows, "there are ", step.num_rows,
              " rows, must be ", step_.num_rows);
  arrays_.copy_(Pinned(at::tensor(step.arrays, at::kInt), arrays_.device()),
                /*non_blocking=*/true);
}

at::Tensor CudaPagedAttention::PositionsT() const {
  return arrays_.narrow(0, 0, step_.num_rows).to(at::kLong);
}

const int32_t* CudaPagedAttention::Array(int64_t first) const {
  return arrays_.const_data_ptr<int32_t>() + first;
}

void CudaPagedAttention::CheckHeads(const char* name, const at::Tensor& x, int64_t num_heads,
                                    const at::Tensor& pages) const {
  TORCH_CHECK(x.scalar_type() == pages.scalar_type() && x.device() == pages.device(), name, " is ",
              x.scalar_type(), " on ", x.device(), " but the pages are ", pages.scalar_type(),
              " on ", pages.device());
  TORCH_CHECK(x.dim() == 3 && x.size(0) == step_.num_rows && x.size(1) == num_heads &&
                  x.size(2) == head_size_,
              name, " has shape ", x.sizes(), ", must be [", step_.num_rows, ", ", num_heads, ", ",
              head_size_, "]");
  TORCH_CHECK(x.stride(2) == 1 && (x.size(1) == 1 || x.stride(1) == head_size_), name,
              " has strides ", x.strides(), "; the elements of a row must be adjacent");
}

void CudaPagedAttention::CheckRotation(const HeadRotation& rotation,
                                       const at::Tensor& pages) const {
  const auto check = [&](const char* name, const at::Tensor& x, int64_t size) {
    TORCH_CHECK(x.scalar_type() == pages.scalar_type() && x.device() == pages.device() &&
                    x.is_contiguous() && x.numel() == size,
                name, " is ", x.scalar_type(), " ", x.sizes(), " on ", x.device(), ", must be ",
                size, " adjacent numbers of the pages' type and device");
  };
  if (rotation.q_norm_D.defined()) check("q_norm", rotation.q_norm_D, head_size_);
  if (rotation.k_norm_D.defined()) check("k_norm", rotation.k_norm_D, head_size_);
  check("cos", rotation.cos_T1D, step_.num_rows * head_size_);
  check("sin", rotation.sin_T1D, step_.num_rows * head_size_);
}

at::Tensor CudaPagedAttention::Run(const at::Tensor& q_TND, const at::Tensor& k_TKD,
                                   const at::Tensor& v_TKD, const HeadRotation& rotation,
                                   const PlainPageTensors& pages, double scale,
                                   int64_t sliding_window) const {
  const at::Tensor& keys = pages.keys_BKPD;
  TORCH_CHECK(Supports(keys), "the pages are ", keys.scalar_type(), " with heads of ",
              keys.size(-1), " elements, for which there is no kernel");
  CheckHeads("q", q_TND, num_heads_, keys);
  CheckHeads("k", k_TKD, num_kv_heads_, keys);
  CheckHeads("v", v_TKD, num_kv_heads_, keys);
  CheckRotation(rotation, keys);
  const DeviceCall call(KernelKind::kPagedAttention, keys);

  RotateAndAppend append;
  append.pages = {DataTypeOf(keys.scalar_type()), num_kv_heads_, head_size_,
                  keys.mutable_data_ptr(), pages.values_BKPD.mutable_data_ptr()};
  append.num_rows = step_.num_rows;
  append.num_heads = num_heads_;
  append.positions_T = Array(0);
  append.sequences_T = Array(step_.first_sequence);
  append.block_tables_SM = Array(step_.first_table);
  append.max_blocks = step_.max_blocks;
  const at::Tensor ready_TND = at::empty({step_.num_rows, num_heads_, head_size_}, q_TND.options());
  append.q_TND = q_TND.const_data_ptr();
  append.q_row_stride = q_TND.stride(0);
  append.q_out_TND = ready_TND.mutable_data_ptr();
  append.q_out_row_stride = ready_TND.stride(0);
  append.q_norm_D = DataOrNull(rotation.q_norm_D);
  append.k_norm_D = DataOrNull(rotation.k_norm_D);
  append.eps = static_cast<float>(rotation.eps);
  append.cos_TD = rotation.cos_T1D.const_data_ptr();
  append.sin_TD = rotation.sin_T1D.const_data_ptr();
  append.k_TKD = k_TKD.const_data_ptr();
  append.k_row_stride = k_TKD.stride(0);
  append.v_TKD = v_TKD.const_data_ptr();
  append.v_row_stride = v_TKD.stride(0);
  CheckLaunch(kernels_.rotate_and_append(append, call.Context()));

  const at::Tensor out_TC = at::empty({step_.num_rows, num_heads_ * head_size_}, q_TND.options());
  if (step_.counts.num_tiles > 0) {
    AttendTiles(ready_TND, append.pages, scale, sliding_window, call, out_TC);
  }
  for (const PagedChunk& chunk : long_chunks_) {
    AttendPagedChunk(chunk, ready_TND, keys, pages.values_BKPD, scale, sliding_window, out_TC);
  }
  return out_TC;
}

void CudaPagedAttention::AttendTiles(const at::Tensor& q_TND, const PlainPages& pages, double scale,
                                     int64_t sliding_window, const DeviceCall& call,
                                     const at::Tensor& out_TC) const {
  PlainPagedAttention attention;
  attention.pages = pages;
  attention.num_heads = num_heads_;
  attention.scale = static_cast<float>(scale);
  attention.sliding_window = sliding_window;
  attention.counts = step_.counts;
  attention.tiles_I = reinterpret_cast<const PagedTile*>(Array(step_.first_tile));
  attention.block_tables_SM = Array(step_.first_table);
  attention.max_blocks = step_.max_blocks;
  attention.q_TND = q_TND.const_data_ptr();
  attention.q_row_stride = q_TND.stride(0);
  attention.out_TND = out_TC.mutable_data_ptr();
  attention.out_row_stride = num_heads_ * head_size_;
  const at::Tensor workspace =
      at::empty({PagedAttentionWorkspaceBytes(attention)}, q_TND.options().dtype(at::kByte));
  CheckLaunch(kernels_.paged_attention(attention, call.Context(workspace)));
}

}  // namespace taopd
