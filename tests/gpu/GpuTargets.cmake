include(${PROJECT_SOURCE_DIR}/tests/kernels/cuda/KernelTests.cmake)
taopd_test(gpu_kernels_test SRCS ${cuda_kernel_tests} ${CMAKE_CURRENT_LIST_DIR}/cublaslt.cc
  DEPS taopd_kernels_cuda taopd_kernels LABELS gpu TIMEOUT 300)
set(cuda_device ${CMAKE_CURRENT_LIST_DIR}/cuda_device.cc)
taopd_test(gpu_heads_test TORCH SRCS ${CMAKE_CURRENT_LIST_DIR}/heads_test.cc ${cuda_device}
  DEPS taopd_kernels_torch LABELS gpu TIMEOUT 300)
taopd_test(gpu_attention_test TORCH
  SRCS ${PROJECT_SOURCE_DIR}/tests/kernels/torch/attention/cuda_paged_attention_test.cc
    ${cuda_device}
  DEPS taopd_cuda_attention LABELS gpu TIMEOUT 300)
taopd_binary(gpu_heads_bench TORCH SRCS ${CMAKE_CURRENT_LIST_DIR}/heads_bench.cc
  DEPS taopd_kernels_torch)
taopd_binary(gpu_attention_bench SRCS ${CMAKE_CURRENT_LIST_DIR}/attention_bench.cc
  DEPS taopd_kernels_cuda)
if(TARGET taopd_engine)  # not in the build of the kernels alone
  taopd_test(gpu_engine_test TORCH
    SRCS ${CMAKE_CURRENT_LIST_DIR}/decode_graphs_test.cc ${cuda_device}
    DEPS taopd_engine LABELS gpu TIMEOUT 300)
endif()
