// WeightBroadcast over NCCL. It uses the CUDA runtime and NCCL but not LibTorch: the tensors come
// from files that are mapped into memory.
//
// The communicator does not block, so that a server that never joins, or is lost, ends a call by
// its KeepWaiting instead of holding the thread forever.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <thread>

#include "trainer/rollout/vllm/weight_broadcast.h"

namespace taopd {
namespace {

constexpr std::chrono::milliseconds kPoll(1);

absl::Status StatusOfCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = Concat("CUDA: ", what, ": ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text)
                                            : absl::InternalError(text);
}

absl::Status StatusOfNccl(ncclResult_t result, const char* what) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return Unavailable("NCCL: ", what, ": ", ncclGetErrorString(result));
}

absl::StatusOr<ncclDataType_t> TypeOf(const std::string& dtype) {
  if (dtype == "F32") return ncclFloat32;
  if (dtype == "BF16") return ncclBfloat16;
  if (dtype == "F16") return ncclFloat16;
  return InvalidArgument("rollout.weight_transfer = nccl: a tensor has the type ", dtype,
                         ", not F32, BF16 or F16");
}

class NcclBroadcast final : public WeightBroadcast {
 public:
  static absl::StatusOr<std::unique_ptr<WeightBroadcast>> Make(int device) {
    auto made = std::make_unique<NcclBroadcast>(device);
    TAOPD_RETURN_IF_ERROR(StatusOfCuda(cudaSetDevice(device), "cudaSetDevice"));
    TAOPD_RETURN_IF_ERROR(StatusOfCuda(
        cudaStreamCreateWithFlags(&made->stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
    ncclUniqueId id;
    TAOPD_RETURN_IF_ERROR(StatusOfNccl(ncclGetUniqueId(&id), "ncclGetUniqueId"));
    made->id_.assign(id.internal, sizeof(id.internal));
    return made;
  }

  explicit NcclBroadcast(int device) : device_(device) {}
  ~NcclBroadcast() override {
    cudaSetDevice(device_);
    // ncclCommDestroy would wait for the others after a failure.
    if (comm_ != nullptr) ncclCommAbort(comm_);
    if (buffer_ != nullptr) cudaFree(buffer_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  const std::string& unique_id() const override { return id_; }

  absl::Status Join(int64_t num_ranks, const KeepWaiting& keep_waiting) override {
    TAOPD_RETURN_IF_ERROR(StatusOfCuda(cudaSetDevice(device_), "cudaSetDevice"));
    ncclUniqueId id;
    id_.copy(id.internal, sizeof(id.internal));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    TAOPD_RETURN_IF_ERROR(StatusOfNccl(
        ncclCommInitRankConfig(&comm_, static_cast<int>(num_ranks), id, /*rank=*/0, &config),
        "ncclCommInitRankConfig"));
    TAOPD_RETURN_IF_ERROR(WaitForCommunicator(keep_waiting));
    TAOPD_RETURN_IF_ERROR(Reserve(sizeof(float)));
    TAOPD_RETURN_IF_ERROR(
        StatusOfCuda(cudaMemsetAsync(buffer_, 0, sizeof(float), stream_), "cudaMemsetAsync"));
    TAOPD_RETURN_IF_ERROR(StatusOfNccl(
        ncclAllReduce(buffer_, buffer_, 1, ncclFloat32, ncclSum, comm_, stream_), "ncclAllReduce"));
    return Finish(keep_waiting);
  }

  absl::Status Send(const TensorView& tensor, const KeepWaiting& keep_waiting) override {
    TAOPD_ASSIGN_OR_RETURN(const ncclDataType_t type, TypeOf(tensor.dtype));
    TAOPD_ASSIGN_OR_RETURN(const int64_t value_bytes, SafetensorsDtypeSize(tensor.dtype));
    TAOPD_RETURN_IF_ERROR(StatusOfCuda(cudaSetDevice(device_), "cudaSetDevice"));
    if (tensor.bytes.size() > capacity_) {  // the buffer may be in use
      TAOPD_RETURN_IF_ERROR(Finish(keep_waiting));
      TAOPD_RETURN_IF_ERROR(Reserve(tensor.bytes.size()));
    }
    // The stream keeps the order: the copy waits for the broadcast of the previous tensor.
    TAOPD_RETURN_IF_ERROR(
        StatusOfCuda(cudaMemcpyAsync(buffer_, tensor.bytes.data(), tensor.bytes.size(),
                                     cudaMemcpyHostToDevice, stream_),
                     "cudaMemcpyAsync"));
    const size_t count = tensor.bytes.size() / static_cast<size_t>(value_bytes);
    TAOPD_RETURN_IF_ERROR(StatusOfNccl(
        ncclBroadcast(buffer_, buffer_, count, type, /*root=*/0, comm_, stream_), "ncclBroadcast"));
    return WaitForCommunicator(keep_waiting);
  }

  absl::Status Finish(const KeepWaiting& keep_waiting) override {
    TAOPD_RETURN_IF_ERROR(StatusOfCuda(cudaSetDevice(device_), "cudaSetDevice"));
    TAOPD_RETURN_IF_ERROR(WaitForCommunicator(keep_waiting));
    for (cudaError_t state; (state = cudaStreamQuery(stream_)) != cudaSuccess;) {
      if (state != cudaErrorNotReady) return StatusOfCuda(state, "a copy or a broadcast");
      TAOPD_RETURN_IF_ERROR(CheckCommunicator());
      TAOPD_RETURN_IF_ERROR(keep_waiting());
      std::this_thread::sleep_for(kPoll);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckCommunicator() {
    ncclResult_t state = ncclSuccess;
    TAOPD_RETURN_IF_ERROR(
        StatusOfNccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError"));
    return StatusOfNccl(state, "the group with vLLM");
  }
  // Waits until the communicator takes the next call.
  absl::Status WaitForCommunicator(const KeepWaiting& keep_waiting) {
    for (ncclResult_t state = ncclInProgress;;) {
      TAOPD_RETURN_IF_ERROR(
          StatusOfNccl(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError"));
      if (state != ncclInProgress) return StatusOfNccl(state, "the group with vLLM");
      TAOPD_RETURN_IF_ERROR(keep_waiting());
      std::this_thread::sleep_for(kPoll);
    }
  }
  // REQUIRES: nothing that was queued reads the buffer.
  absl::Status Reserve(size_t size_bytes) {
    if (buffer_ != nullptr) cudaFree(buffer_);
    buffer_ = nullptr;
    capacity_ = 0;
    TAOPD_RETURN_IF_ERROR(StatusOfCuda(cudaMalloc(&buffer_, size_bytes), "cudaMalloc of a tensor"));
    capacity_ = size_bytes;
    return absl::OkStatus();
  }

  const int device_;
  std::string id_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  void* buffer_ = nullptr;  // of the largest tensor so far
  size_t capacity_ = 0;     // its size in bytes
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightBroadcast>> MakeNcclBroadcast(int device) {
  return NcclBroadcast::Make(device);
}

bool HasNcclBroadcast() { return true; }

}  // namespace taopd
