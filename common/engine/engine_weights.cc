#include "common/engine/engine_weights.h"

#include <c10/core/InferenceMode.h>

#include <exception>
#include <map>
#include <set>
#include <utility>

#include "common/io/file.h"
#include "common/io/safetensors/safetensors.h"
#include "common/io/sha256.h"
#include "common/model/architectures/architecture.h"
#include "common/model/torch_errors.h"
#include "common/model/weights/lora_weights.h"
#include "common/model/weights/model_files.h"
#include "common/model/weights/weights.h"

namespace taopd {
namespace {

// Few threads, because the engine computes meanwhile.
constexpr int kHashThreads = 4;

std::span<const std::byte> BytesOf(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Returns a text that is equal for the configurations of two models that differ only in their
// weights.
std::string ConfigOf(const Decoder& decoder) {
  ModelConfig config = decoder.config();
  config.raw_json.clear();
  // The end ids may come from generation_config.json, which a directory of weights may lack. The
  // engine keeps its own.
  config.eos_token_ids.clear();
  config.dtype = ConfigDtype(decoder.dtype());
  return ModelConfigJson(config);
}

using SumsByName = std::map<std::string, std::string>;

SumsByName ByName(const std::vector<TensorSum>& sums) {
  SumsByName by_name;
  for (const TensorSum& sum : sums) by_name[sum.name] = sum.sha256;
  return by_name;
}

// Returns DATA_LOSS if a tensor does not have its sum, and INVALID_ARGUMENT if the names differ.
absl::Status CheckSums(const std::map<std::string, std::span<const std::byte>>& tensors,
                       const SumsByName& expected) {
  std::vector<std::span<const std::byte>> pieces;
  for (const auto& [name, bytes] : tensors) {
    if (!expected.contains(name))
      return InvalidArgument("the checksum of tensor ", name, " is missing");
    pieces.push_back(bytes);
  }
  if (expected.size() != tensors.size()) {
    return InvalidArgument(expected.size(), " checksums are given for ", tensors.size(),
                           " tensors");
  }
  const std::vector<std::string> found = Sha256OfAll(pieces, kHashThreads);
  size_t i = 0;
  for (const auto& [name, bytes] : tensors) {
    const std::string& sum = found[i++];
    if (sum == expected.at(name)) continue;
    return DataLoss("tensor ", name, " has the checksum ", sum.substr(0, 16), "... instead of ",
                    expected.at(name).substr(0, 16), "...");
  }
  return absl::OkStatus();
}

class DecoderWeights final : public EngineWeights {
 public:
  explicit DecoderWeights(std::shared_ptr<Decoder> decoder) : decoder_(std::move(decoder)) {}

  absl::StatusOr<std::unique_ptr<StagedWeights>> Stage(
      const std::string& directory, const std::vector<TensorSum>& sums) override {
    if (!FileExists(directory)) return NotFound(directory, ": does not exist");
    try {
      if (FileExists(directory + "/" + kAdapterWeightsFile)) return StageAdapter(directory, sums);
      return StageModel(directory, sums);
    } catch (const std::exception& error) {
      return StatusOfException(error, directory);
    }
  }

  int64_t num_bytes() const override {
    int64_t bytes = 0;
    for (const auto& [name, tensor] : decoder_->Parameters())
      bytes += static_cast<int64_t>(tensor.nbytes());
    return bytes;
  }

 private:
  class Staged final : public StagedWeights {
   public:
    Staged(DecoderWeights* weights, std::vector<NewParameter> changed, SumsByName sums,
           std::set<std::string> adapted)
        : weights_(*weights),
          changed_(std::move(changed)),
          sums_(std::move(sums)),
          adapted_(std::move(adapted)) {}
    int64_t num_changed() const override { return static_cast<int64_t>(changed_.size()); }
    absl::Status Apply() override {
      try {
        // If this fails, any of the tensors may have been replaced.
        weights_.sums_.clear();
        weights_.is_model_ |= adapted_.empty();
        weights_.adapted_.insert(adapted_.begin(), adapted_.end());
        weights_.decoder_->ReplaceParameters(changed_);
        weights_.sums_ = std::move(sums_);
        weights_.adapted_ = std::move(adapted_);
        return absl::OkStatus();
      } catch (const std::exception& error) {
        return Internal("the weights could not be replaced: ", MessageOf(error));
      }
    }

   private:
    DecoderWeights& weights_;
    const std::vector<NewParameter> changed_;
    SumsByName sums_;
    std::set<std::string> adapted_;  // names; empty for a model
  };

  absl::StatusOr<std::unique_ptr<StagedWeights>> StageModel(const std::string& directory,
                                                            const std::vector<TensorSum>& sums) {
    DecoderOptions options;
    options.device = "cpu";
    TAOPD_ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> given, LoadDecoder(directory, options));
    if (ConfigOf(*given) != ConfigOf(*decoder_)) {
      return FailedPrecondition(directory, ": config.json or the type of the weights (",
                                ConfigDtype(given->dtype()), ") is not that of the served model (",
                                ConfigDtype(decoder_->dtype()), ")");
    }
    std::map<std::string, std::span<const std::byte>> tensors;
    for (const auto& [name, tensor] : given->Parameters()) tensors[name] = BytesOf(tensor);
    SumsByName new_sums = ByName(sums);
    TAOPD_RETURN_IF_ERROR(Annotate(CheckSums(tensors, new_sums), directory));
    std::vector<NewParameter> changed;
    for (const auto& [name, tensor] : given->Parameters()) {
      const auto present = sums_.find(name);
      if (present != sums_.end() && present->second == new_sums[name]) continue;
      changed.push_back({name, tensor, given->ReleaserOf(tensor)});
    }
    return std::make_unique<Staged>(this, std::move(changed), std::move(new_sums),
                                    std::set<std::string>());
  }

  // The base does not change; each adapter is merged with it anew.
  absl::StatusOr<std::unique_ptr<StagedWeights>> StageAdapter(const std::string& directory,
                                                              const std::vector<TensorSum>& sums) {
    TAOPD_ASSIGN_OR_RETURN(const auto file,
                           SafetensorsFile::Open(directory + "/" + kAdapterWeightsFile));
    std::map<std::string, std::span<const std::byte>> tensors;
    for (const auto& [name, view] : file->tensors()) tensors[name] = view.bytes;
    TAOPD_RETURN_IF_ERROR(Annotate(CheckSums(tensors, ByName(sums)), directory));
    TAOPD_ASSIGN_OR_RETURN(const Architecture* architecture,
                           FindArchitecture(decoder_->config().architecture));
    ModelWeights shapes_only;
    const auto slots = ListWeights(decoder_->config(), architecture->names, &shapes_only);
    TAOPD_ASSIGN_OR_RETURN(const LoraAdapters adapters,
                           ReadLoraAdapters(directory, decoder_->config(), slots));
    if (is_model_) {
      return FailedPrecondition(directory, ": is an adapter of weights that were replaced");
    }
    std::set<std::string> adapted;
    for (const auto& [name, adapter] : adapters.by_weight) adapted.insert(name);
    for (const auto& [name, tensor] : adapters.saved) adapted.insert(name);
    const c10::InferenceMode normal(false);
    KeepBase(adapted);
    std::vector<NewParameter> changed;
    for (const auto& [name, adapter] : adapters.by_weight)
      changed.push_back({name, MergeAdapter(base_.at(name), adapter), nullptr});
    for (const auto& [name, tensor] : adapters.saved)
      changed.push_back({name, tensor.to(decoder_->dtype()), nullptr});
    for (const std::string& name : adapted_) {
      if (!adapted.contains(name)) changed.push_back({name, base_.at(name), nullptr});
    }
    return std::make_unique<Staged>(this, std::move(changed), SumsByName(), std::move(adapted));
  }

  // Keeps these tensors of the base on the CPU, before the first adapter changes them. Decoders may
  // write new values in place, except in mapped files.
  void KeepBase(const std::set<std::string>& names) {
    for (const auto& [name, tensor] : decoder_->Parameters()) {
      if (!names.contains(name) || base_.contains(name)) continue;
      const bool is_mapped = decoder_->ReleaserOf(tensor) != nullptr;
      base_[name] = is_mapped ? tensor
                              : tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false,
                                          /*copy=*/true);
    }
  }

  const std::shared_ptr<Decoder> decoder_;
  SumsByName sums_;                         // of the weights in use; empty if unknown
  bool is_model_ = false;                   // whether a model has replaced the base
  std::set<std::string> adapted_;           // the tensors in use that an adapter has changed
  std::map<std::string, at::Tensor> base_;  // of all tensors that an adapter has changed
};

}  // namespace

std::unique_ptr<EngineWeights> MakeDecoderWeights(std::shared_ptr<Decoder> decoder) {
  return std::make_unique<DecoderWeights>(std::move(decoder));
}

}  // namespace taopd
