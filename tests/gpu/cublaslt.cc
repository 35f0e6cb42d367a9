// The cuBLASLt handle of tests/kernels/cuda on a GPU.
#include <cublasLt.h>

#include "tests/kernels/cuda/device_array.h"

namespace taopd {

cublasLtContext* TestCublasLt() {
  static cublasLtHandle_t handle = nullptr;
  if (handle == nullptr) {
    EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  }
  return handle;
}

}  // namespace taopd
