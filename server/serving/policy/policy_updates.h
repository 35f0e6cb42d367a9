// The versions of a served model whose weights a trainer replaces (proto/taopd/v1/policy.proto).
//
// An update reads and checks the new weights while the current ones are in use, closes the old
// version (versioned_engine.h), replaces the weights in place, and makes the next version ready. If
// anything fails before the replacement, the current version continues to serve. If the replacement
// itself fails, the server is not ready, serves no version and refuses work until weights are set
// again.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <memory>
#include <string>
#include <vector>

#include "common/engine/engine_weights.h"
#include "server/serving/policy/received_weights.h"
#include "server/serving/policy/versioned_engine.h"
#include "server/serving/serving_state.h"

namespace taopd {

// The fields of SetWeightsRequest.
struct PolicyUpdate {
  std::string version;
  std::string directory;
  std::vector<TensorSum> sums;
  bool drops = false;
};

// Thread-safe; SetWeights and PutFilePart wait for each other.
class PolicyUpdates {
 public:
  // `weights_dir`, if it is not empty, is the directory under which weights may be, and into which
  // files are received; otherwise weights may be anywhere, and files are received in a temporary
  // directory. `state` must outlive the object.
  PolicyUpdates(ServingState* state, std::string weights_dir)
      : state_(state), weights_dir_(std::move(weights_dir)), received_(weights_dir_) {}

  // Puts the first version in front of the model's engine. Call it once, before the model is ready.
  // REQUIRES: model->weights is not null.
  void Begin(ServedModel* model);

  // The errors are those of policy.proto. Returns the number of changed tensors.
  absl::StatusOr<int64_t> SetWeights(const PolicyUpdate& update, absl::Time deadline);
  // Returns next_offset. See ReceivedWeights for the limits.
  absl::StatusOr<int64_t> PutFilePart(const WeightFilePart& part);
  // Returns the revision that was loaded at the start, or UNAVAILABLE until it is. Never blocks.
  absl::StatusOr<std::string> base_revision() const;

 private:
  absl::Status CheckDirectory(const std::string& directory) const;

  ServingState* const state_;
  const std::string weights_dir_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<InferenceEngine> engine_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<VersionedEngine> current_ ABSL_GUARDED_BY(mutex_);
  ReceivedWeights received_ ABSL_GUARDED_BY(mutex_);
  mutable absl::Mutex base_mutex_;  // never held for long
  std::string base_revision_ ABSL_GUARDED_BY(base_mutex_);
};

}  // namespace taopd
