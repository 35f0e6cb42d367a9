#include "server/serving/policy/policy_updates.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "common/base/log.h"
#include "server/serving/excerpt.h"

namespace taopd {

void PolicyUpdates::Begin(ServedModel* model) {
  absl::MutexLock lock(&mutex_);
  engine_ = model->engine;
  {
    absl::MutexLock base_lock(&base_mutex_);
    base_revision_ = model->revision;
  }
  current_ = std::make_shared<VersionedEngine>(engine_);
  model->engine = current_;
}

absl::StatusOr<std::string> PolicyUpdates::base_revision() const {
  absl::MutexLock lock(&base_mutex_);
  if (base_revision_.empty()) return Unavailable("the model is loading");
  return base_revision_;
}

absl::Status PolicyUpdates::CheckDirectory(const std::string& directory) const {
  if (weights_dir_.empty()) return absl::OkStatus();
  std::error_code root_error, given_error;
  const auto root = std::filesystem::weakly_canonical(weights_dir_, root_error);
  const auto given = std::filesystem::weakly_canonical(directory, given_error);
  const auto [end, other] = std::mismatch(root.begin(), root.end(), given.begin(), given.end());
  if (!root_error && !given_error && end == root.end()) return absl::OkStatus();
  return InvalidArgument("directory \"", Excerpt(directory), "\" is not under weights_dir");
}

absl::StatusOr<int64_t> PolicyUpdates::SetWeights(const PolicyUpdate& update, absl::Time deadline) {
  TAOPD_RETURN_IF_ERROR(CheckPlainName("version", update.version));
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<const ServedModel> model = state_->model();
  if (model == nullptr) return Unavailable("the model is loading");
  if (model->revision == update.version && model->engine == current_) return 0;
  std::string directory = update.directory;
  if (directory.empty()) {
    TAOPD_ASSIGN_OR_RETURN(directory, received_.DirectoryOf(update.version));
  } else {
    TAOPD_RETURN_IF_ERROR(CheckDirectory(directory));
  }
  const absl::Time begun_at = absl::Now();
  TAOPD_ASSIGN_OR_RETURN(const std::unique_ptr<StagedWeights> staged,
                         model->weights->Stage(directory, update.sums));
  const absl::Time read_at = absl::Now();
  TAOPD_RETURN_IF_ERROR(current_->Close(update.drops, deadline));
  // If the replacement fails, the model keeps the closed version, and any other update is new.
  current_ = std::make_shared<VersionedEngine>(engine_);
  const absl::Time idle_at = absl::Now();
  if (const absl::Status applied = staged->Apply(); !applied.ok()) {
    state_->SetWeightsDamaged(applied);
    LogError("no work is accepted until weights are set again",
             {{"error", std::string(applied.message())}});
    return applied;
  }
  auto next = std::make_shared<ServedModel>(*model);
  next->revision = update.version;
  next->weight_version = update.version;
  next->engine = current_;
  state_->SetReady(std::move(next));
  // Files of other versions were never completed.
  if (update.directory.empty()) received_.Clear();
  LogInfo("weights replaced", {{"version", update.version},
                               {"changed_tensors", staged->num_changed()},
                               {"read_s", absl::ToDoubleSeconds(read_at - begun_at)},
                               {"wait_s", absl::ToDoubleSeconds(idle_at - read_at)},
                               {"replace_s", absl::ToDoubleSeconds(absl::Now() - idle_at)}});
  return staged->num_changed();
}

absl::StatusOr<int64_t> PolicyUpdates::PutFilePart(const WeightFilePart& part) {
  absl::MutexLock lock(&mutex_);
  const std::shared_ptr<const ServedModel> model = state_->model();
  if (model == nullptr) return Unavailable("the model is loading");
  return received_.Put(part, model->weights->num_bytes());
}

}  // namespace taopd
