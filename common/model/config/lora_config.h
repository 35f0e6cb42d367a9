// The configuration of low-rank adapters (LoRA; Hu et al., arXiv:2106.09685) in the terms of PEFT,
// and the directory in which PEFT stores an adapter:
//
//   adapter_config.json         LoraConfig and the directory of the base model
//   adapter_model.safetensors   A and B of each adapted Linear (lora_weights.h)
//
// It does not depend on LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/config/model_config.h"

namespace taopd {

// The initial values of A; B is zero, so that a new adapter changes nothing.
enum class LoraInit {
  kDefault,   // uniform between -1 / sqrt(inputs) and 1 / sqrt(inputs): PEFT's (Kaiming's) default
  kGaussian,  // normal with standard deviation 1 / rank
};

struct LoraConfig {
  int64_t rank = 0;
  double alpha = 0;
  // The Linear layers that have an adapter: names such as q_proj, which stand for that layer of all
  // blocks, or full names such as model.layers.0.self_attn.q_proj. In a configuration, all-linear
  // stands for all of kLoraModules.
  std::vector<std::string> target_modules;
  LoraInit init = LoraInit::kDefault;
  bool use_rslora = false;  // scale by alpha / sqrt(rank)
  double dropout = 0;       // of PEFT's training; adapters with dropout are not trained here
  // The directory of the base model, as base_model_name_or_path has it; empty if it names none.
  std::string base_model;

  double Scale() const;  // the factor of B A
};

// The adapters that a model is trained with.
struct LoraOptions {
  LoraConfig config;
  uint64_t seed = 0;  // of the initial values
  // If not empty, a directory whose adapter gives the initial values and replaces `config`.
  std::string dir;
};

// The Linear layers that can have an adapter. Experts, their router, the embedding and the head are
// not among them.
inline constexpr const char* kLoraModules[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                               "gate_proj", "up_proj", "down_proj"};
inline constexpr char kAllLinear[] = "all-linear";

inline constexpr char kAdapterConfigFile[] = "adapter_config.json";
inline constexpr char kAdapterWeightsFile[] = "adapter_model.safetensors";

// Returns whether `target` of target_modules names the module `name`, by PEFT's rule.
bool IsLoraTarget(const std::string& name, const std::vector<std::string>& targets);

// Returns INVALID_ARGUMENT for a name that is not in kLoraModules or that occurs twice, and for an
// empty list. all-linear must stand alone.
absl::Status CheckLoraTargets(const std::vector<std::string>& target_modules);
// Replaces all-linear by the names of kLoraModules that the model has outside of its experts.
// Returns the errors of CheckLoraTargets, and INVALID_ARGUMENT for a name that the model has only
// in its experts.
absl::StatusOr<std::vector<std::string>> ResolveTargetModules(
    const std::vector<std::string>& target_modules, const ModelConfig& model);

// Returns the number of values of all adapters. REQUIRES: ResolveTargetModules made target_modules.
int64_t NumLoraParameters(const ModelConfig& model, const LoraConfig& lora);

// Returns whether the directory holds an adapter instead of a model.
bool IsAdapterDir(const std::string& dir);
// Reads adapter_config.json. Returns UNIMPLEMENTED for settings that would change the results and
// are not supported: other methods than LoRA, DoRA, biases, modules_to_save, patterns of ranks,
// initial values that change the base, and all that are unknown.
absl::StatusOr<LoraConfig> ReadLoraConfig(const std::string& adapter_dir);
// Returns the text of adapter_config.json as PEFT writes it.
std::string LoraConfigJson(const LoraConfig& config);

// Returns `dir`, or the base model's directory if `dir` holds an adapter: base_model_name_or_path,
// which is relative to the working directory, as in PEFT. Returns NOT_FOUND if there is no such
// directory.
absl::StatusOr<std::string> BaseModelDir(const std::string& dir);

}  // namespace taopd
