# LibTorch as the target taopd_torch, with its CUDA libraries and the toolkit when TAOPD_CUDA is on.
# tests/gpu, which has no other dependency, includes this file, too. TAOPD_DEPS (a directory that
# holds torch-2.11.0/torch or torch) or -DTAOPD_TORCH_DIR=.../torch names an existing LibTorch.
include(${CMAKE_CURRENT_LIST_DIR}/DownloadDirectory.cmake)
taopd_wheel(torch torch torch)
find_path(TAOPD_TORCH_DIR NAMES include/ATen/ATen.h
          PATHS ${TAOPD_DEPS}/${torch}/torch ${TAOPD_DEPS}/torch ${TAOPD_DEPS}
          NO_DEFAULT_PATH DOC "LibTorch: the directory that holds include/ and lib/")
if(NOT TAOPD_TORCH_DIR)
  taopd_refuse_dependency("LibTorch is not in ${TAOPD_DEPS}")
endif()
# The headers of Gloo (common/dist/gloo_headers) and the packages fit one version only. tests/gpu,
# which builds the kernels alone, may use another.
set(torch_version "")
set(header ${TAOPD_TORCH_DIR}/include/torch/headeronly/version.h)
if(EXISTS ${header})
  file(STRINGS ${header} torch_version REGEX "\"[0-9.]+\"")
  string(REGEX MATCH "[0-9]+\\.[0-9]+" torch_version "${torch_version}")
endif()
if(NOT torch_version STREQUAL "2.11" AND NOT PROJECT_NAME STREQUAL "taopd_gpu")
  set(torch_dir ${TAOPD_TORCH_DIR})
  unset(TAOPD_TORCH_DIR CACHE)  # so that the next run looks again
  taopd_refuse_dependency(
    "${torch_dir} holds another LibTorch (\"${torch_version}\") than 2.11")
endif()

# The wheel's find_package(Torch) requires the CUDA toolkit, so the targets are defined here.
foreach(lib torch_cpu c10)
  add_library(${lib} SHARED IMPORTED GLOBAL)
  set_target_properties(${lib} PROPERTIES IMPORTED_LOCATION ${TAOPD_TORCH_DIR}/lib/lib${lib}.so)
endforeach()
add_library(taopd_torch INTERFACE)
target_include_directories(taopd_torch SYSTEM INTERFACE
  ${TAOPD_TORCH_DIR}/include ${TAOPD_TORCH_DIR}/include/torch/csrc/api/include)
# The run-time library of OpenMP is the one that torch_cpu itself uses: two would be two pools of
# threads.
file(GLOB TAOPD_GOMP ${TAOPD_TORCH_DIR}/lib/libgomp*.so*)
if(TAOPD_GOMP)
  list(GET TAOPD_GOMP 0 gomp)
  add_library(taopd_gomp SHARED IMPORTED GLOBAL)
  set_target_properties(taopd_gomp PROPERTIES IMPORTED_LOCATION ${gomp})
  target_link_libraries(taopd_torch INTERFACE taopd_gomp)
else()  # a LibTorch that uses the system's
  target_link_options(taopd_torch INTERFACE -fopenmp)
endif()
target_link_libraries(taopd_torch INTERFACE torch_cpu c10 Threads::Threads)

if(TAOPD_CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 does not know it for nvcc 13
  include(CudaArchitectures)
  set(CMAKE_CUDA_ARCHITECTURES ${TAOPD_CUDA_ARCHITECTURES}
    CACHE STRING "Architectures of the kernels")
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(CMAKE_CUDA_COMPILER nvcc PATHS /usr/local/cuda/bin)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  foreach(lib torch_cuda c10_cuda)
    add_library(${lib} SHARED IMPORTED GLOBAL)
    set_target_properties(${lib} PROPERTIES IMPORTED_LOCATION ${TAOPD_TORCH_DIR}/lib/lib${lib}.so)
  endforeach()
  target_compile_definitions(taopd_torch INTERFACE TAOPD_CUDA=1)
  # torch_cuda registers its kernels when it is loaded: it must stay although no symbol is named.
  # Its own dependencies (cuFile, cuSPARSELt, NVSHMEM) may be absent where a program is only built.
  target_link_options(taopd_torch INTERFACE -Wl,--allow-shlib-undefined)
  target_link_libraries(taopd_torch
    INTERFACE -Wl,--no-as-needed torch_cuda c10_cuda -Wl,--as-needed CUDA::cudart)
endif()
