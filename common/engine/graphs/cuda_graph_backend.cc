// The GraphBackend that records CUDA graphs with at::cuda::CUDAGraph.
#include "common/engine/graphs/graph_backend.h"

#ifdef TAOPD_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <exception>
#include <optional>
#endif

namespace taopd {
#ifdef TAOPD_CUDA
namespace {

class CudaRecordedStep final : public RecordedStep {
 public:
  explicit CudaRecordedStep(at::Device device) : device_(device) {}

  // Captures on `stream`, which must not be the default stream, because that cannot be captured.
  void Capture(const std::function<void()>& step, at::cuda::MempoolId_t pool,
               const c10::cuda::CUDAStream& stream) {
    const c10::cuda::CUDAStreamGuard guard(stream);
    // Run the step once without capturing: LibTorch creates handles and workspaces of cuBLAS at a
    // stream's first use, and CUDA loads kernels at their first launch. Neither is allowed during a
    // capture.
    step();
    stream.synchronize();
    // Other threads may allocate and copy meanwhile, on streams of their own.
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      step();
    } catch (...) {
      try {
        graph_.capture_end();  // so that the stream and the allocator's pool are usable again
      } catch (const std::exception&) {
        // The first error has the reason.
      }
      throw;
    }
    graph_.capture_end();
  }

  void Replay() override {
    const c10::cuda::CUDAGuard guard(device_);
    graph_.replay();
  }

 private:
  const at::Device device_;
  at::cuda::CUDAGraph graph_;
};

class CudaGraphBackend final : public GraphBackend {
 public:
  explicit CudaGraphBackend(at::Device device) : device_(device) {}

  // All records use one stream, because the allocator reuses freed memory only on the same stream.
  void BeginSet() override {
    pool_ = at::cuda::graph_pool_handle();
    if (!stream_) {
      stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device_.index());
    }
  }
  // Frees the memory that the steps used when they ran without a capture.
  void EndSet() override { c10::cuda::CUDACachingAllocator::emptyCache(); }

  std::unique_ptr<RecordedStep> Record(const std::function<void()>& step) override {
    const c10::cuda::CUDAGuard guard(device_);
    c10::cuda::device_synchronize();  // the steps' inputs were written on the current stream
    auto recorded = std::make_unique<CudaRecordedStep>(device_);
    recorded->Capture(step, pool_, *stream_);
    return recorded;
  }

 private:
  const at::Device device_;
  at::cuda::MempoolId_t pool_;
  std::optional<c10::cuda::CUDAStream> stream_;
};

}  // namespace
#endif

absl::StatusOr<std::unique_ptr<GraphBackend>> MakeCudaGraphBackend(at::Device device) {
  if (!device.is_cuda()) {
    return InvalidArgument("cuda_graphs = true needs a CUDA device, but the model is on ",
                           device.str());
  }
#ifdef TAOPD_CUDA
  return std::make_unique<CudaGraphBackend>(device);
#else
  return Unimplemented("cuda_graphs = true needs a build with TAOPD_CUDA");
#endif
}

}  // namespace taopd
