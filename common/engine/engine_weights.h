// Replaces the weights with which an engine computes. This header includes no LibTorch, so that
// servers and trainers can include it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// The SHA-256 of a stored tensor's bytes, in hexadecimal.
struct TensorSum {
  std::string name;
  std::string sha256;
  bool operator==(const TensorSum&) const = default;
};

// Weights that are read and checked, and not yet in use.
class StagedWeights {
 public:
  virtual ~StagedWeights() = default;
  // The number of tensors that differ from those in use.
  virtual int64_t num_changed() const = 0;
  // Makes the engine use them. REQUIRES: the engine has no work, and no other thread calls
  // EngineWeights. After INTERNAL, the engine's weights are undefined; another Apply must follow.
  virtual absl::Status Apply() = 0;
};

// Used by one thread at a time. Must not outlive the engine.
class EngineWeights {
 public:
  virtual ~EngineWeights() = default;
  // Reads the weights of a directory: a model with the engine's configuration and types, or a PEFT
  // adapter of the model that the engine was made with. Its files stay mapped while the weights are
  // in use. Every tensor in them must have its sum. The engine may compute meanwhile.
  // Returns
  //   DATA_LOSS            a file is damaged, or a tensor does not have its sum; names the tensor
  //   INVALID_ARGUMENT     names or shapes are not those of the model, or a sum is missing
  //   FAILED_PRECONDITION  the configuration or the types are not those of the engine, or a model
  //                        has replaced the base of the adapter
  //   NOT_FOUND            there is no such directory
  virtual absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(
      const std::string& directory, const std::vector<TensorSum>& sums) = 0;
  // The size of the model's weights.
  virtual int64_t num_bytes() const = 0;
};

class Decoder;  // common/model/decoder.h

// REQUIRES: Decoder::ReplaceParameters may be called for the decoder, now and later.
std::unique_ptr<EngineWeights> MakeDecoderWeights(std::shared_ptr<Decoder> decoder);

}  // namespace taopd
