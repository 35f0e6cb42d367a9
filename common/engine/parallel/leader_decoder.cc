#include "common/engine/parallel/leader_decoder.h"

#include <ATen/Parallel.h>
#include <absl/synchronization/mutex.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "common/base/file_descriptor.h"
#include "common/dist/rendezvous_addresses.h"
#include "common/engine/parallel/group_collectives.h"
#include "common/engine/parallel/model_command.h"
#include "common/engine/parallel/worker_processes.h"
#include "common/model/torch_errors.h"
#include "common/model/weights/weights.h"

namespace taopd {
namespace {

ModelCommand InferCommand(const PagedBatch& batch, const KvPages& pages) {
  ModelCommand command = {.kind = ModelCommand::Kind::kInfer};
  const at::Tensor ids_T = batch.token_ids_T.cpu();
  command.token_ids.assign(ids_T.const_data_ptr<int64_t>(),
                           ids_T.const_data_ptr<int64_t>() + ids_T.numel());
  for (const PagedSequence& sequence : batch.sequences) {
    command.num_rows.push_back(sequence.num_rows);
    command.past_lens.push_back(sequence.past_len);
    command.block_tables.emplace_back(
        sequence.block_table,
        sequence.block_table + KvBlocksFor(sequence.past_len + sequence.num_rows));
  }
  command.num_blocks = pages.num_blocks();
  command.for_whole_sequences = pages.for_whole_sequences();
  return command;
}

std::vector<int32_t> IdsOf(const at::Tensor& ids) {
  if (!ids.defined()) return {};
  const at::Tensor on_cpu = ids.cpu().contiguous();
  return {on_cpu.const_data_ptr<int32_t>(), on_cpu.const_data_ptr<int32_t>() + on_cpu.numel()};
}

class LeaderDecoder final : public Decoder {
 public:
  LeaderDecoder(ModelConfig config, std::unique_ptr<Decoder> slice,
                std::unique_ptr<WorkerProcesses> workers, std::unique_ptr<ProcessGroup> group,
                std::unique_ptr<GroupCollectives> collectives)
      : Decoder(std::move(config), slice->device(), slice->dtype()),
        workers_(std::move(workers)),
        group_(std::move(group)),
        collectives_(std::move(collectives)),
        slice_(std::move(slice)) {}

  ~LeaderDecoder() override {
    group_->Leave();
    workers_.reset();
  }

  at::Tensor Forward(const PackedBatch&, const ForwardOptions&) override {
    TORCH_CHECK(false, "a tensor parallel model is for inference");
  }

  at::Tensor Infer(const PagedBatch& batch, KvPages* pages) override {
    if (batch.token_ids_T.size(0) == 0) return slice_->Infer(batch, pages);
    return OnAllRanks(InferCommand(batch, *pages), [&] { return slice_->Infer(batch, pages); });
  }

  at::Tensor Logits(const at::Tensor& hidden_NH) override {
    return OnAllRanksWithHidden({.kind = ModelCommand::Kind::kLogits}, hidden_NH,
                                [&](const at::Tensor& hidden) { return slice_->Logits(hidden); });
  }

  ScoringOutput ScoreRows(const at::Tensor& hidden_NH, const at::Tensor& sampled_ids_N,
                          const at::Tensor& candidate_ids_NM,
                          const ScoringOptions& options) override {
    ModelCommand command = {.kind = ModelCommand::Kind::kScore};
    command.sampled_ids = IdsOf(sampled_ids_N);
    command.candidate_ids = IdsOf(candidate_ids_NM);
    command.num_candidates = candidate_ids_NM.defined() ? candidate_ids_NM.size(1) : 0;
    command.scoring = options;
    return OnAllRanksWithHidden(std::move(command), hidden_NH, [&](const at::Tensor& hidden) {
      return slice_->ScoreRows(hidden, sampled_ids_N, candidate_ids_NM, options);
    });
  }

  void CopyBlock(KvPages* pages, int32_t from, int32_t to) override {
    ModelCommand command = {.kind = ModelCommand::Kind::kCopyBlock};
    command.num_blocks = pages->num_blocks();
    command.from_block = from;
    command.to_block = to;
    OnAllRanks(command, [&] { slice_->CopyBlock(pages, from, to); });
  }

  // Returns the bytes of this process. The others need about as many for their slices.
  int64_t PrepareInference() override {
    return OnAllRanks({.kind = ModelCommand::Kind::kPrepare},
                      [&] { return slice_->PrepareInference(); });
  }

  void KeepForInferenceOnly() override {
    OnAllRanks({.kind = ModelCommand::Kind::kKeep}, [&] { slice_->KeepForInferenceOnly(); });
  }

  const ModelConfig& paged_config() const override { return slice_->paged_config(); }
  uint64_t weight_version() const override { return slice_->weight_version(); }
  at::Tensor lm_head() const override { return slice_->lm_head(); }
  std::vector<NamedParameter> Parameters() const override { return slice_->Parameters(); }

  absl::Status Health() const override {
    TAOPD_RETURN_IF_ERROR(workers_->Health());
    TAOPD_RETURN_IF_ERROR(group_->health());
    absl::MutexLock lock(&mutex_);
    return failure_;
  }

 private:
  // Sends the command to the other ranks, then calls `function`. No call is made after a failure,
  // because the ranks no longer agree on their state.
  template <typename Function>
  auto OnAllRanks(const ModelCommand& command, const Function& function) -> decltype(function()) {
    try {
      const absl::Status health = Health();
      TORCH_CHECK(health.ok(), "tensor parallel: ", std::string(health.message()));
      const absl::Status sent = workers_->SendToAll(command.Encode());
      TORCH_CHECK(sent.ok(), "tensor parallel: ", std::string(sent.message()));
      return function();
    } catch (const std::exception& error) {
      absl::MutexLock lock(&mutex_);
      if (failure_.ok()) failure_ = Unavailable(MessageOf(error));
      throw;
    }
  }

  template <typename Function>
  auto OnAllRanksWithHidden(ModelCommand command, const at::Tensor& hidden_NH,
                            const Function& function) -> decltype(function(hidden_NH)) {
    command.hidden_rows = hidden_NH.size(0);
    return OnAllRanks(command, [&] {
      at::Tensor hidden = hidden_NH.contiguous();
      collectives_->Broadcast(hidden);
      return function(hidden);
    });
  }

  std::unique_ptr<WorkerProcesses> workers_;
  std::unique_ptr<ProcessGroup> group_;
  std::unique_ptr<GroupCollectives> collectives_;
  std::unique_ptr<Decoder> slice_;
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::string> DeviceOfRank(const std::string& device, int64_t rank) {
  if (device == "cpu" || (device == "auto" && !at::hasCUDA())) return std::string("cpu");
  if (device == "auto" || device == "cuda") return Concat("cuda:", rank);
  return InvalidArgument("device ", device,
                         " is one device; with tensor_parallel_size name cpu, cuda or auto");
}

// Starts the other ranks, which join rank 0 at load.master_port and load their slices.
absl::StatusOr<std::unique_ptr<WorkerProcesses>> StartWorkers(ModelCommand load,
                                                              const std::string& device) {
  TAOPD_ASSIGN_OR_RETURN(auto workers, WorkerProcesses::Start(load.num_ranks));
  for (int64_t rank = 1; rank < load.num_ranks; ++rank) {
    TAOPD_ASSIGN_OR_RETURN(load.use.device, DeviceOfRank(device, rank));
    load.rank = rank;
    TAOPD_RETURN_IF_ERROR(workers->Send(rank, load.Encode()));
  }
  TAOPD_RETURN_IF_ERROR(workers->AwaitReady(kParallelJoinTimeout));
  return workers;
}

// Joins the other ranks, which connect to the port on which listen_fd listens.
absl::StatusOr<std::unique_ptr<ProcessGroup>> JoinWorkers(const ModelCommand& load, int listen_fd,
                                                          at::Device device,
                                                          const WorkerProcesses& workers) {
  Rendezvous rendezvous = ParallelRendezvous(0, load.num_ranks, load.master_port);
  rendezvous.listen_fd = ::fcntl(listen_fd, F_DUPFD_CLOEXEC, 0);  // the store closes its copy
  if (rendezvous.listen_fd < 0) {
    return Unavailable("rank 0 cannot copy the socket on which it listens: ", std::strerror(errno));
  }
  auto group = ProcessGroup::Connect(rendezvous, ParallelGroupOptions(device));
  // The end of a process explains more than its absence.
  if (!group.ok()) TAOPD_RETURN_IF_ERROR(workers.Health());
  return group;
}

// Returns the number of threads that each of `size` processes of this machine uses.
int64_t ThreadsPerRank(int num_threads, int64_t size) {
  return std::max<int64_t>(1, (num_threads > 0 ? num_threads : at::get_num_threads()) / size);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> LoadTensorParallel(const std::string& model_dir,
                                                            const DecoderOptions& options,
                                                            const KernelUse& kernels, int64_t size,
                                                            int num_threads) {
  TAOPD_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model_dir));
  TAOPD_RETURN_IF_ERROR(CheckTensorParallel(config, size));
  TAOPD_ASSIGN_OR_RETURN(const std::string own_device, DeviceOfRank(options.device, 0));
  TAOPD_ASSIGN_OR_RETURN(const at::Device device, ParseDevice(own_device));

  TAOPD_ASSIGN_OR_RETURN(const int listen_fd, ListenAt("127.0.0.1", 0));
  const FileDescriptor listener(listen_fd);
  ModelCommand load = {.kind = ModelCommand::Kind::kLoad};
  load.model_dir = model_dir;
  load.merged_adapter_dir = options.merged_adapter_dir;
  load.use = kernels;
  load.num_threads = ThreadsPerRank(num_threads, size);
  load.num_ranks = size;
  load.master_port = LocalName(listen_fd).second;
  TAOPD_ASSIGN_OR_RETURN(auto workers, StartWorkers(load, options.device));
  TAOPD_ASSIGN_OR_RETURN(auto group, JoinWorkers(load, listen_fd, device, *workers));
  auto collectives = std::make_unique<GroupCollectives>(group.get());

  at::set_num_threads(static_cast<int>(load.num_threads));
  DecoderOptions own = options;
  own.device = own_device;
  own.group = collectives.get();
  auto slice = LoadDecoder(model_dir, own);
  TAOPD_RETURN_IF_ERROR(group->AgreeOnStatus(slice.status()));
  config.dtype = ConfigDtype((*slice)->dtype());
  return std::make_unique<LeaderDecoder>(std::move(config), *std::move(slice), std::move(workers),
                                         std::move(group), std::move(collectives));
}

}  // namespace taopd
