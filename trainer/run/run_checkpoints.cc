#include "trainer/run/run_checkpoints.h"

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/model/torch_errors.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/dist/optimizer_shards.h"

namespace taopd {

absl::StatusOr<std::unique_ptr<SaveInProgress>> RunCheckpoints::Begin(bool copies) {
  // Used on rank 0, for everything except the ranks' parts of the optimizer.
  std::shared_ptr<const CheckpointContents> contents;
  std::shared_ptr<const OptimizerShardsToWrite> shards;
  absl::Status copied;
  try {
    if (group_->is_root()) {
      contents =
          std::make_shared<const CheckpointContents>(*student_, *state_, text_files_, copies);
    }
    if (group_->world_size() > 1) {
      shards = std::make_shared<const OptimizerShardsToWrite>(*student_->optimizer, group_->rank(),
                                                              copies);
    }
  } catch (const std::exception& error) {
    copied = StatusOfException(error, copies ? "copying the student" : "preparing the checkpoint");
  }
  TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(copied));
  const auto write = [contents, shards, pending = write_pending_,
                      in_flight = write_in_flight_](const std::string& dir) -> absl::Status {
    const std::string shards_dir = dir + "/" + kOptimizerShardsDir;
    if (contents) TAOPD_RETURN_IF_ERROR(contents->Write(dir));
    if (pending) TAOPD_RETURN_IF_ERROR(pending(dir));
    if (in_flight) TAOPD_RETURN_IF_ERROR(in_flight(dir));
    if (!shards) return absl::OkStatus();
    TAOPD_RETURN_IF_ERROR(MakeDirectories(shards_dir));
    return shards->Write(shards_dir);
  };
  return SaveInProgress::Start(group_, store_, state_->step, write, pending_mini_batches_);
}

absl::StatusOr<std::string> RunCheckpoints::Save() {
  WaitForSave();
  records_->Sync(state_);
  const bool may_fit = !group_->is_root() || attempts_.MayFit(checkpoint_bytes_);
  const absl::Status fits = group_->AgreeOnStatus(
      may_fit ? absl::OkStatus() : ResourceExhausted("the checkpoint does not fit"));
  if (!fits.ok()) return RecordSaveResult(state_->step, fits);
  const auto save = Begin(/*copies=*/false);
  if (!save.ok()) return RecordSaveResult(state_->step, save.status());
  (*save)->IsDone(/*waits=*/true);
  return RecordSaveResult(state_->step, (*save)->result().path);
}

absl::Status RunCheckpoints::StartSave() {
  WaitForSave();
  records_->Sync(state_);
  TAOPD_ASSIGN_OR_RETURN(save_in_progress_, Begin(/*copies=*/true));
  return absl::OkStatus();
}

std::optional<SaveResult> RunCheckpoints::TakeFinishedSave(bool waits) {
  if (save_in_progress_ == nullptr || !save_in_progress_->IsDone(waits)) return std::nullopt;
  SaveResult saved = save_in_progress_->result();
  save_in_progress_.reset();
  saved.path = RecordSaveResult(saved.step, std::move(saved.path));
  return saved;
}

absl::StatusOr<std::string> RunCheckpoints::RecordSaveResult(int64_t step,
                                                             absl::StatusOr<std::string> saved) {
  if (!saved.ok()) return attempts_.Failed(checkpoint_bytes_, saved.status());
  attempts_.Succeeded();
  newest_saved_step_ = step;
  return saved;
}

absl::Status RunCheckpoints::ExportAsRoot() {
  const auto save = [this](const std::string& dir) { return SaveStudentModel(*student_, dir); };
  absl::Status written = ResourceExhausted("the model does not fit");
  if (attempts_.MayFit(model_bytes_)) written = ReplaceDirectory(model_dir_, save);
  if (!written.ok()) return attempts_.Failed(model_bytes_, written);
  attempts_.Succeeded();
  return written;
}

void RunCheckpoints::Pin(std::set<int64_t> steps) {
  WaitForSave();
  if (store_ != nullptr) store_->Pin(std::move(steps));
}

CheckpointRef RunCheckpoints::FindOnRoot(int64_t first_step, int64_t last_step) {
  WaitForSave();
  CheckpointRef newest;
  newest.step = -1;
  if (!group_->is_root() || store_ == nullptr) return newest;
  const auto all = store_->List();
  if (!all.ok()) LogWarning("cannot list the checkpoints", {{"error", all.status()}});
  for (const CheckpointRef& ref : all.value_or(std::vector<CheckpointRef>())) {
    if (ref.step >= first_step && ref.step <= last_step && ref.mini_batch == 0 &&
        VerifyCheckpoint(ref.path, ref.step, /*hashes=*/false).ok()) {
      newest = ref;
    }
  }
  return newest;
}

absl::StatusOr<std::optional<int64_t>> RunCheckpoints::NewestStep(int64_t step) {
  TAOPD_ASSIGN_OR_RETURN(const int64_t newest, group_->AgreeOnLargest(FindOnRoot(0, step).step));
  return newest < 0 ? std::nullopt : std::optional(newest);
}

absl::StatusOr<CheckpointRef> RunCheckpoints::FindNewest(int64_t step) {
  WaitForSave();
  absl::StatusOr<std::optional<CheckpointRef>> found = std::nullopt;
  if (group_->is_root()) {
    found = store_->Newest(step);
    if (found.ok() && !*found)
      found = NotFound("there is no checkpoint of at most ", step, " steps");
  }
  TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(found.status()));
  CheckpointRef to = (*found).value_or(CheckpointRef());
  TAOPD_ASSIGN_OR_RETURN(to.step, group_->AgreeOnLargest(to.step));
  TAOPD_ASSIGN_OR_RETURN(to.path, group_->BroadcastText(to.path, 0));
  return to;
}

absl::Status RunCheckpoints::DeleteAfter(int64_t step) {
  WaitForSave();
  return group_->AgreeOnStatus(group_->is_root() ? store_->DeleteAfter(step) : absl::OkStatus());
}

}  // namespace taopd
