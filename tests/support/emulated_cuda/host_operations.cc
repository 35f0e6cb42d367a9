// The library operations that kernels/cuda uses, as plain loops on host memory.
#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cuda/gemm/matmul.h"
#include "kernels/cuda/head/vocabulary_sort.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/support/emulated_cuda/cuda_bf16.h"

namespace taopd::cuda {
namespace {

double ValueAt(DataType type, const Operand& operand, int64_t row, int64_t column) {
  const int64_t i =
      operand.transposed ? column * operand.stride + row : row * operand.stride + column;
  return type == DataType::kFloat32
             ? static_cast<const float*>(operand.data)[i]
             : __bfloat162float(static_cast<const __nv_bfloat16*>(operand.data)[i]);
}

}  // namespace

std::string Matmul(DataType inputs, int64_t m, int64_t n, int64_t k, const Operand& a,
                   const Operand& b, float beta, float* c, int64_t c_stride, void* scratch,
                   const DeviceContext& context) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += ValueAt(inputs, a, i, l) * ValueAt(inputs, b, l, j);
      }
      float* place = c + i * c_stride + j;
      *place = static_cast<float>(sum) + (beta == 0 ? 0.0f : beta * *place);
    }
  }
  return "";
}

int64_t SortScratchBytes(int64_t) { return 0; }

std::string SortByVocabulary(const uint32_t* keys, const int32_t* entries, int64_t num_entries,
                             uint32_t* sorted_keys, int32_t* sorted_entries, void*, int64_t,
                             cudaStream_t) {
  std::vector<int64_t> order(num_entries);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t left, int64_t right) { return keys[left] < keys[right]; });
  for (int64_t i = 0; i < num_entries; ++i) {
    sorted_keys[i] = keys[order[i]];
    sorted_entries[i] = entries[order[i]];
  }
  return "";
}

}  // namespace taopd::cuda

namespace taopd {

cublasLtContext* TestCublasLt() { return nullptr; }

}  // namespace taopd
