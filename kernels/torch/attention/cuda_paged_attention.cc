#include "kernels/torch/attention/cuda_paged_attention.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace taopd {
namespace {

static_assert(sizeof(PagedTile) == 4 * sizeof(int32_t));

int64_t NumBlocks(const PagedSequence& sequence) {
  return KvBlocksFor(sequence.past_len + sequence.num_rows);
}

}  // namespace

bool CudaPagedAttention::Supports(const at::Tensor& keys_BKPD) {
  const int64_t head_size = keys_BKPD.size(-1);
  return keys_BKPD.is_cuda() && head_size % 2 == 0 && head_size <= kMaxHeadSize &&
         (keys_BKPD.scalar_type() == at::kFloat || keys_BKPD.scalar_type() == at::kBFloat16);
}

CudaPagedAttention::CudaPagedAttention(const std::vector<PagedSequence>& sequences,
                                       int64_t num_heads, int64_t num_kv_heads, int64_t head_size,
                                       at::Device device)
    : num_heads_(num_heads), num_kv_heads_(num_kv_heads), head_size_(head_size) {
  std::vector<int32_t> arrays, lines;
  for (size_t s = 0; s < sequences.size(); ++s) {
    max_blocks_ = std::max(max_blocks_, NumBlocks(sequences[s]));
    for (int64_t i = 0; i < sequences[s].num_rows; ++i) {
      arrays.push_back(static_cast<int32_t>(sequences[s].past_len + i));
      lines.push_back(static_cast<int32_t>(s));
    }
  }
  num_rows_ = first_line_ = static_cast<int64_t>(arrays.size());
  arrays.insert(arrays.end(), lines.begin(), lines.end());
  first_table_ = static_cast<int64_t>(arrays.size());
  for (const PagedSequence& sequence : sequences) {
    const int64_t num = NumBlocks(sequence);
    arrays.insert(arrays.end(), sequence.block_table, sequence.block_table + num);
    arrays.resize(arrays.size() + static_cast<size_t>(max_blocks_ - num));  // not read
  }
  const PagedTiles plan = PlanPagedTiles(sequences.data(), static_cast<int64_t>(sequences.size()),
                                         num_heads, num_kv_heads, head_size);
  counts_ = plan.counts;
  first_tile_ = static_cast<int64_t>(arrays.size());
  arrays.resize(arrays.size() + 4 * plan.tiles_I.size());
  if (!plan.tiles_I.empty()) {
    std::memcpy(&arrays[static_cast<size_t>(first_tile_)], plan.tiles_I.data(),
                plan.tiles_I.size() * sizeof(PagedTile));
  }
  arrays_ = at::tensor(arrays, at::kInt).to(device);
}

const int32_t* CudaPagedAttention::Array(int64_t first) const {
  return arrays_.const_data_ptr<int32_t>() + first;
}

void CudaPagedAttention::CheckHeads(const char* name, const at::Tensor& x, int64_t num_heads,
                                    const at::Tensor& pages) const {
  TORCH_CHECK(x.scalar_type() == pages.scalar_type() && x.device() == pages.device(), name, " is ",
              x.scalar_type(), " on ", x.device(), " but the pages are ", pages.scalar_type(),
              " on ", pages.device());
  TORCH_CHECK(
      x.dim() == 3 && x.size(0) == num_rows_ && x.size(1) == num_heads && x.size(2) == head_size_,
      name, " has shape ", x.sizes(), ", must be [", num_rows_, ", ", num_heads, ", ", head_size_,
      "]");
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
  check("cos", rotation.cos_T1D, num_rows_ * head_size_);
  check("sin", rotation.sin_T1D, num_rows_ * head_size_);
}

at::Tensor CudaPagedAttention::Run(const at::Tensor& q_TND, const at::Tensor& k_TKD,
                                   const at::Tensor& v_TKD, const HeadRotation& rotation,
                                   const PlainPageTensors& pages, double scale,
                                   int64_t sliding_window) const {
  const at::Tensor& keys = pages.keys_BKPD;
  TORCH_CHECK(Supports(keys), "the pages are ", keys.scalar_type(), " on ", keys.device(),
              ", must be float32 or bfloat16 on CUDA");
  CheckHeads("q", q_TND, num_heads_, keys);
  CheckHeads("k", k_TKD, num_kv_heads_, keys);
  CheckHeads("v", v_TKD, num_kv_heads_, keys);
  CheckRotation(rotation, keys);
  const c10::cuda::CUDAGuard guard(keys.device());
  DeviceContext context;
  context.stream = at::cuda::getCurrentCUDAStream().stream();

  RotateAndAppend append;
  append.pages = {keys.scalar_type() == at::kBFloat16 ? DataType::kBFloat16 : DataType::kFloat32,
                  num_kv_heads_, head_size_, keys.mutable_data_ptr(),
                  pages.values_BKPD.mutable_data_ptr()};
  append.num_rows = num_rows_;
  append.num_heads = num_heads_;
  append.positions_T = Array(0);
  append.sequences_T = Array(first_line_);
  append.block_tables_SM = Array(first_table_);
  append.max_blocks = max_blocks_;
  const at::Tensor ready_TND = at::empty({num_rows_, num_heads_, head_size_}, q_TND.options());
  const auto data_of = [](const at::Tensor& x) {
    return x.defined() ? x.const_data_ptr() : nullptr;
  };
  append.q_TND = q_TND.const_data_ptr();
  append.q_row_stride = q_TND.stride(0);
  append.q_out_TND = ready_TND.mutable_data_ptr();
  append.q_out_row_stride = ready_TND.stride(0);
  append.q_norm_D = data_of(rotation.q_norm_D);
  append.k_norm_D = data_of(rotation.k_norm_D);
  append.eps = static_cast<float>(rotation.eps);
  append.cos_TD = rotation.cos_T1D.const_data_ptr();
  append.sin_TD = rotation.sin_T1D.const_data_ptr();
  append.k_TKD = k_TKD.const_data_ptr();
  append.k_row_stride = k_TKD.stride(0);
  append.v_TKD = v_TKD.const_data_ptr();
  append.v_row_stride = v_TKD.stride(0);
  std::string wrong = RotateAndAppendCuda(append, context);
  TORCH_CHECK(wrong.empty(), wrong);

  const at::Tensor out_TC = at::empty({num_rows_, num_heads_ * head_size_}, q_TND.options());
  PlainPagedAttention attention;
  attention.pages = append.pages;
  attention.num_heads = num_heads_;
  attention.scale = static_cast<float>(scale);
  attention.sliding_window = sliding_window;
  attention.counts = counts_;
  attention.tiles_I = reinterpret_cast<const PagedTile*>(Array(first_tile_));
  attention.block_tables_SM = Array(first_table_);
  attention.max_blocks = max_blocks_;
  attention.q_TND = ready_TND.const_data_ptr();
  attention.q_row_stride = ready_TND.stride(0);
  attention.out_TND = out_TC.mutable_data_ptr();
  attention.out_row_stride = num_heads_ * head_size_;
  const at::Tensor workspace =
      at::empty({PagedAttentionWorkspaceBytes(attention)}, q_TND.options().dtype(at::kByte));
  context.workspace = workspace.mutable_data_ptr();
  context.workspace_bytes = workspace.numel();
  wrong = PagedAttentionCuda(attention, context);
  TORCH_CHECK(wrong.empty(), wrong);
  return out_TC;
}

}  // namespace taopd
