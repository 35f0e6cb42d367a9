// A model's configuration and weights, to be written now or by another thread.
#pragma once

#include <string>
#include <vector>

#include "common/model/decoder.h"

namespace taopd {

struct ModelSnapshot {
  ModelConfig config;                      // with the dtype that the weights have
  std::vector<NamedParameter> parameters;  // in the order of Decoder::Parameters
};

// Refers to the decoder's tensors, or has copies of them in host memory, which training cannot
// change.
ModelSnapshot SnapshotOf(const Decoder& decoder, bool copies);

// SaveDecoder of a snapshot.
absl::Status SaveSnapshot(const ModelSnapshot& snapshot, const std::string& model_dir,
                          int64_t max_shard_bytes = kMaxShardBytes);

}  // namespace taopd
