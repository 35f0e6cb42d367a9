// A model's configuration and weights, or its adapters alone, to be written now or by another
// thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/model/weights/model_files.h"

namespace taopd {

struct ModelSnapshot {
  ModelConfig config;  // includes the dtype of the weights
  // In the order of Decoder::TrainedParameters. A head that is tied to a saved embedding follows.
  std::vector<NamedParameter> parameters;
  std::optional<LoraConfig> lora;  // set if the parameters are those of adapters
};

// Returns a snapshot that refers to the decoder's tensors, or, if `copies` is set, has copies of
// them in host memory, which training cannot change.
ModelSnapshot SnapshotOf(const Decoder& decoder, bool copies);

// Does the same as SaveDecoder, for a snapshot.
absl::Status SaveSnapshot(const ModelSnapshot& snapshot, const std::string& model_dir,
                          int64_t max_shard_bytes = kMaxShardBytes);

}  // namespace taopd
