// Attention of rows whose keys and values are stored in plain pages, on CUDA tensors through
// kernels/cuda (taopd/attention/paged_attention_cuda.h). Work goes to ATen's current stream of the
// device. Built only with TAOPD_CUDA, and in tests of the emulated run-time, where tensors are on
// the CPU.
//
// Shapes: T rows of the batch, N heads, K key-value heads, D head size; B blocks of P =
// kBlockTokens positions.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "kernels/torch/composed/chunk_attention.h"
#include "kernels/torch/device_kernels.h"
#include "kernels/torch/kernel_choice.h"
#include "taopd/attention/paged_attention_cuda.h"

namespace taopd {

class DeviceCall;  // kernels/torch/device_call.h

// The pages of one layer, contiguous, of one type and device.
struct PlainPageTensors {
  at::Tensor keys_BKPD;
  at::Tensor values_BKPD;
};

// The parameters that prepare queries and keys as NormRotateHeads does
// (kernels/torch/layers/norms_and_swiglu.h).
struct HeadRotation {
  at::Tensor q_norm_D, k_norm_D;  // undefined: no norm
  double eps = 0;
  at::Tensor cos_T1D, sin_T1D;
};

// The data of one batch that all layers need, on the device. Any thread may call its functions, but
// calls that share pages must not overlap, and Refill must not overlap with any call.
class CudaPagedAttention {
 public:
  // Whether the kernels compute pages like these: float32 or bfloat16, with a head size that is
  // even and at most kMaxHeadSize.
  static bool Supports(const at::Tensor& keys_BKPD);

  // Whether the sequence's rows need so much work that a composition of about ten launches can be
  // faster than one launch of the kernel. The bound is 2^17 pairs of a row and a key: with 32 heads
  // of 128 elements, 1 to 2 GFLOP, or 0.1 to 0.2 ms at 10 TFLOP/s (computed).
  static bool IsLongChunk(const PagedSequence& sequence);

  // Reads the sequences' block tables and keeps no reference to them. Long chunks are computed by
  // the kernel if `custom_long_chunks`, and otherwise by AttendPagedChunk, which makes the last
  // bits of a row depend on its chunk. REQUIRES: the rows of the sequences follow one another, and
  // the tables have entries for all their positions.
  CudaPagedAttention(const std::vector<PagedSequence>& sequences, int64_t num_heads,
                     int64_t num_kv_heads, int64_t head_size, at::Device device,
                     const DeviceKernels& kernels = LinkedKernels(),
                     bool custom_long_chunks = UsesCustom(KernelKind::kPrefillAttention));
  // For sequences that have one row each and at most max_len positions (LayOutDecodeStep). A CUDA
  // graph may record Run: its launches and the addresses that it reads stay the same, while Refill
  // changes the contents. REQUIRES: as above.
  CudaPagedAttention(const std::vector<PagedSequence>& sequences, int64_t max_len,
                     int64_t num_heads, int64_t num_kv_heads, int64_t head_size, at::Device device);

  // Returns the positions of the rows in their sequences, int64 [T], without another upload.
  at::Tensor PositionsT() const;

  // Replaces the sequences by others, as many as there are now, before the next work on ATen's
  // current stream. REQUIRES: the object was made with a max_len.
  void Refill(const std::vector<PagedSequence>& sequences);

  // Prepares queries and keys, writes the rows' keys and values to the pages in the same pass, and
  // returns the attention of the rows, [T, N * D]. Rows may be apart; the elements of a row are
  // adjacent. A sliding_window of 0 means none. Does not wait for the device. Throws c10::Error if
  // a tensor has the wrong shape, type, device or layout.
  at::Tensor Run(const at::Tensor& q_TND, const at::Tensor& k_TKD, const at::Tensor& v_TKD,
                 const HeadRotation& rotation, const PlainPageTensors& pages, double scale,
                 int64_t sliding_window) const;

 private:
  void CheckHeads(const char* name, const at::Tensor& x, int64_t num_heads,
                  const at::Tensor& pages) const;
  void CheckRotation(const HeadRotation& rotation, const at::Tensor& pages) const;
  const int32_t* Array(int64_t first) const;
  void AttendTiles(const at::Tensor& q_TND, const PlainPages& pages, double scale,
                   int64_t sliding_window, const DeviceCall& call, const at::Tensor& out_TC) const;

  CudaPagedAttention(PagedStep step, int64_t max_len, int64_t num_heads, int64_t num_kv_heads,
                     int64_t head_size, at::Device device, const DeviceKernels& kernels);

  const int64_t num_heads_, num_kv_heads_, head_size_;
  const int64_t max_len_;  // 0: this object serves one step
  const DeviceKernels kernels_;
  PagedStep step_;                       // without the arrays
  at::Tensor arrays_;                    // int32, on the device
  std::vector<PagedChunk> long_chunks_;  // without tiles
};

}  // namespace taopd
