// The loop of the processes of a tensor parallel model (worker_processes.h).
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <signal.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/dist/process_group.h"
#include "common/engine/parallel/command_channel.h"
#include "common/engine/parallel/group_collectives.h"
#include "common/engine/parallel/model_command.h"
#include "common/engine/parallel/worker_processes.h"
#include "common/model/torch_errors.h"
#include "common/model/weights/model_files.h"

namespace taopd {
namespace {

// A slice and its pages.
class Worker {
 public:
  explicit Worker(ProcessGroup* group) : group_(group), collectives_(group) {}

  absl::Status Run(const ModelCommand& command) {
    switch (command.kind) {
      case ModelCommand::Kind::kLoad:
        return Load(command);
      case ModelCommand::Kind::kPrepare:
        decoder_->PrepareInference();
        break;
      case ModelCommand::Kind::kKeep:
        decoder_->KeepForInferenceOnly();
        break;
      case ModelCommand::Kind::kInfer:
        Infer(command);
        break;
      case ModelCommand::Kind::kCopyBlock:
        PagesOf(command).CopyBlock(static_cast<int32_t>(command.from_block),
                                   static_cast<int32_t>(command.to_block));
        break;
      case ModelCommand::Kind::kLogits:
        decoder_->Logits(ReceiveHidden(command));
        break;
      case ModelCommand::Kind::kScore:
        Score(command);
        break;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Load(const ModelCommand& command) {
    if (command.num_threads > 0) at::set_num_threads(static_cast<int>(command.num_threads));
    DecoderOptions options;
    options.dtype = command.use.dtype;
    options.device = command.use.device;
    options.merged_adapter_dir = command.merged_adapter_dir;
    options.group = &collectives_;
    auto decoder = LoadSlice(command, options);
    TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(decoder.status()));
    decoder_ = *std::move(decoder);
    return absl::OkStatus();
  }

  static absl::StatusOr<std::unique_ptr<Decoder>> LoadSlice(const ModelCommand& command,
                                                            const DecoderOptions& options) {
    TAOPD_RETURN_IF_ERROR(SetUpKernels(command.use, command.model_dir));
    return LoadDecoder(command.model_dir, options);
  }

  KvPages MakePages(const ModelCommand& command) const {
    const auto layout = KvPages::LayoutOf(decoder_->device());
    const auto& config = decoder_->paged_config();
    return command.for_whole_sequences
               ? KvPages::ForWholeSequences(config, command.num_blocks, decoder_->dtype(),
                                            decoder_->device(), layout)
               : KvPages(config, command.num_blocks, decoder_->dtype(), decoder_->device(), layout);
  }

  KvPages& PagesOf(const ModelCommand& command) {
    if (pages_ == nullptr || pages_->num_blocks() != command.num_blocks) {
      pages_.reset();
      pages_ = std::make_unique<KvPages>(MakePages(command));
    }
    return *pages_;
  }

  void Infer(const ModelCommand& command) {
    PagedBatch batch;
    batch.token_ids_T = at::tensor(command.token_ids, at::kLong).to(decoder_->device());
    int64_t first_row = 0;
    for (size_t i = 0; i < command.num_rows.size(); ++i) {
      batch.sequences.push_back(
          {first_row, command.num_rows[i], command.past_lens[i], command.block_tables[i].data()});
      first_row += command.num_rows[i];
    }
    if (command.for_whole_sequences) {
      KvPages whole = MakePages(command);
      decoder_->Infer(batch, &whole);
    } else {
      decoder_->Infer(batch, &PagesOf(command));
    }
  }

  at::Tensor ReceiveHidden(const ModelCommand& command) {
    at::Tensor hidden_NH =
        at::empty({command.hidden_rows, decoder_->config().hidden_size},
                  at::TensorOptions().dtype(decoder_->dtype()).device(decoder_->device()));
    collectives_.Broadcast(hidden_NH);
    return hidden_NH;
  }

  void Score(const ModelCommand& command) {
    const at::Tensor hidden_NH = ReceiveHidden(command);
    at::Tensor sampled_N, candidates_NM;
    if (!command.sampled_ids.empty()) sampled_N = at::tensor(command.sampled_ids, at::kInt);
    if (command.num_candidates > 0) {
      candidates_NM =
          at::tensor(command.candidate_ids, at::kInt).view({-1, command.num_candidates});
    }
    decoder_->ScoreRows(hidden_NH, sampled_N, candidates_NM, command.scoring);
  }

  ProcessGroup* const group_;
  GroupCollectives collectives_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<KvPages> pages_;
};

absl::Status Serve(CommandChannel* channel) {
  TAOPD_ASSIGN_OR_RETURN(const std::optional<std::string> first, channel->Receive());
  if (!first) return absl::OkStatus();
  TAOPD_ASSIGN_OR_RETURN(const ModelCommand load, ModelCommand::Decode(*first));
  if (load.kind != ModelCommand::Kind::kLoad)
    return DataLoss("the first command must load the model");
  const absl::StatusOr<at::Device> device = ParseDevice(load.use.device);
  // Rank 0 waits for this message, so that it does not wait for a rank that never joins.
  TAOPD_RETURN_IF_ERROR(channel->Send(std::string(device.status().message())));
  TAOPD_RETURN_IF_ERROR(device.status());
  const Rendezvous rendezvous = ParallelRendezvous(load.rank, load.num_ranks, load.master_port);
  TAOPD_ASSIGN_OR_RETURN(const auto group,
                         ProcessGroup::Connect(rendezvous, ParallelGroupOptions(*device)));
  Worker worker(group.get());
  const c10::InferenceMode inference_mode;
  absl::Status status = worker.Run(load);
  while (status.ok()) {
    TAOPD_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, channel->Receive());
    if (!bytes) break;
    TAOPD_ASSIGN_OR_RETURN(const ModelCommand command, ModelCommand::Decode(*bytes));
    status = worker.Run(command);
  }
  group->Leave();
  return status;
}

}  // namespace

bool IsTensorParallelWorker() { return std::getenv(kWorkerFdVariable) != nullptr; }

int RunTensorParallelWorker() {
  // A signal to the whole process group makes rank 0 drain; this rank ends with rank 0.
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGTERM, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  CommandChannel channel(std::atoi(std::getenv(kWorkerFdVariable)));
  absl::Status status;
  try {
    status = Serve(&channel);
  } catch (const std::exception& error) {
    status = StatusOfException(error, "the model failed");
  }
  if (status.ok()) return kExitOk;
  LogError("a tensor parallel rank has failed", {{"error", status}});
  return kExitInternal;
}

}  // namespace taopd
