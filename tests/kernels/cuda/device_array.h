// Device memory for tests that run on a GPU (tests/gpu) and, with the emulated runtime, on the CPU.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "taopd/base/data_type.h"
#include "taopd/base/device.h"

namespace taopd {

// An array on the device that owns its memory and can copy itself to the host.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    if (cudaMalloc(&data_, size_ * sizeof(T) + 1) != cudaSuccess) data_ = nullptr;
    EXPECT_NE(data_, nullptr);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  // Allocates uninitialized memory.
  explicit DeviceArray(int64_t size) : size_(static_cast<size_t>(size)) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(T) + 1), cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() { return static_cast<T*>(data_); }
  // Returns null for an empty array, which means "not given".
  T* OrNull() { return size_ == 0 ? nullptr : data(); }

  std::vector<T> Values() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  size_t size_;
  void* data_ = nullptr;
};

// Names the tests of a suite with a type as its parameter.
inline std::string NameOfType(const ::testing::TestParamInfo<DataType>& info) {
  return info.param == DataType::kFloat32 ? "float32" : "bfloat16";
}

// Returns the cublasLtHandle_t of the current device; null where the products are emulated.
cublasLtContext* TestCublasLt();

// Skips every test if the CUDA runtime has no device.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&num_devices);
    if (error != cudaSuccess || num_devices == 0) {
      GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(error);
    }
  }
};

}  // namespace taopd
