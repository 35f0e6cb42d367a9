#!/bin/sh
# cuda_build_test.sh SOURCE_DIR BUILD_DIR TORCH_DIR
# The preset cuda configures, compiles every kernel for all its architectures without a warning and with the registers and
# spills of kernels/cuda/resources.tsv, and links programs and GPU tests with LibTorch's CUDA libraries.
# 77: skipped.
set -eu
export PATH="$PATH:/usr/local/cuda/bin"
if ! command -v nvcc >/dev/null; then
  echo "skipped: nvcc is neither in PATH nor in /usr/local/cuda/bin"
  exit 77
fi
if [ ! -f "$3/lib/libtorch_cuda.so" ]; then
  echo "skipped: $3 has no CUDA libraries"
  exit 77
fi
cd "$1"
cmake --preset cuda -B "$2" -DTAOPD_TORCH_DIR="$3"
TAOPD_CUDA_STRICT=1 cmake --build "$2" --target taopd-teacher taopd-trainer gpu_kernels_test gpu_attention_test \
  gpu_heads_test gpu_engine_test gpu_heads_bench gpu_attention_bench
for program in bin/taopd-teacher bin/taopd-trainer tests-bin/gpu_kernels_test tests-bin/gpu_heads_test; do
  readelf -d "$2/$program" | grep -q 'NEEDED.*libcudart' || { echo "$program is not linked with the CUDA run-time"; exit 1; }
done
# The collectives of several GPUs and the weights' way to vLLM are compiled only with nccl.h, which is the toolkit's or comes
# with deploy/setup --cuda.
if grep -q '^TAOPD_NCCL_INCLUDE:PATH=/' "$2/CMakeCache.txt"; then
  nm -u "$2/common/dist/libtaopd_dist.a" | grep -q ProcessGroupNCCL || { echo "taopd_dist does without NCCL"; exit 1; }
  nm -u "$2/trainer/rollout/libtaopd_rollout.a" | grep -q ncclBroadcast || {
    echo "taopd_rollout does without NCCL"
    exit 1
  }
else
  echo "nccl.h is not found: the collectives of NCCL are not compiled"
fi
