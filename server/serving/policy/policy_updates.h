// The versions of a served model whose weights a trainer replaces (proto/taopd/v1/policy.proto).
//
// An update reads and checks the new weights while the present ones serve, closes the old version
// (versioned_engine.h), replaces the weights in place, and makes the next version ready. Whatever
// fails before the replacement leaves the present version serving. Should the replacement itself
// fail, the server refuses work until weights are set again.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/engine/engine_weights.h"
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

// The fields of PutWeightsRequest.
struct WeightPart {
  std::string version;
  std::string file;
  int64_t offset = 0;
  int64_t file_bytes = 0;
  std::string_view data;
  std::string sha256;
};

// Thread-safe; SetWeights and PutPart wait for each other.
class PolicyUpdates {
 public:
  // The largest WeightPart::data.
  static constexpr int64_t kMaxPartBytes = int64_t{16} << 20;

  // `weights_dir`, if it is not empty, is the directory under which weights may be, and into which
  // files are received; otherwise weights may be anywhere, and files are received in a temporary
  // directory. `state` must outlive the object.
  PolicyUpdates(ServingState* state, std::string weights_dir)
      : state_(state), weights_dir_(std::move(weights_dir)) {}
  // Removes what was received.
  ~PolicyUpdates();

  // Puts the first version in front of the model's engine. Call it once, before the model is ready.
  // REQUIRES: model->weights is not null.
  void Begin(ServedModel* model);

  // The errors are those of policy.proto. Returns the number of changed tensors.
  absl::StatusOr<int64_t> SetWeights(const PolicyUpdate& update, absl::Time deadline);
  // Returns next_offset.
  absl::StatusOr<int64_t> PutPart(const WeightPart& part);
  // Returns the revision that was loaded at the start, or UNAVAILABLE until it is. Never blocks.
  absl::StatusOr<std::string> base_revision() const;

 private:
  // The directory that receives the files of a version.
  absl::StatusOr<std::string> ReceivedDir(const std::string& version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckDirectory(const std::string& directory) const;
  void RemoveReceived(const std::string& version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  ServingState* const state_;
  const std::string weights_dir_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<InferenceEngine> engine_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<VersionedEngine> present_ ABSL_GUARDED_BY(mutex_);
  std::string received_dir_ ABSL_GUARDED_BY(mutex_);  // empty until a file is received
  mutable absl::Mutex base_mutex_;                    // never held for long
  std::string base_revision_ ABSL_GUARDED_BY(base_mutex_);
};

}  // namespace taopd
