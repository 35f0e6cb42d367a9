// The configuration of low-rank adapters (LoRA; Hu et al., arXiv:2106.09685) in PEFT's terms, and
// the directory in which PEFT stores an adapter:
//
//   adapter_config.json         LoraConfig and the directory of the base model
//   adapter_model.safetensors   A and B of each adapted Linear, and the weights of the modules to
//                               save (lora_weights.h)
//
// This header does not depend on LibTorch.
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
  // The modules whose weights are trained in full along with the adapters and stored with them, as
  // ends of their names. By PEFT's rule, norm stands for all norms.
  std::vector<std::string> modules_to_save;
  // Whether the head stays tied to an embedding that is saved. PEFT's default unties them.
  bool ensure_weight_tying = false;
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
  // If not empty, a directory whose adapter gives the initial values and replaces `config`, except
  // for a base_model there.
  std::string dir;
};

// The Linear layers that can have an adapter. Experts, their router, the embedding and the head are
// not among them.
inline constexpr const char* kLoraModules[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                               "gate_proj", "up_proj", "down_proj"};
inline constexpr int64_t kMaxLoraRank = 65536;
inline constexpr char kAllLinear[] = "all-linear";
// The words for modules_to_save in a configuration. model.norm is the final norm alone; the norms
// of queries and keys are among those that norm stands for.
inline constexpr const char* kSavedModules[] = {
    "embed_tokens", "lm_head", "norm", "model.norm", "input_layernorm", "post_attention_layernorm",
    "q_norm",       "k_norm"};

inline constexpr char kAdapterConfigFile[] = "adapter_config.json";
inline constexpr char kAdapterWeightsFile[] = "adapter_model.safetensors";

// Returns whether one of the target_modules names the module `name`, by PEFT's rule.
bool IsLoraTarget(const std::string& name, const std::vector<std::string>& target_modules);

// Returns INVALID_ARGUMENT for a name that is not in kLoraModules or that occurs twice, and for an
// empty list. all-linear must stand alone.
absl::Status CheckLoraTargets(const std::vector<std::string>& target_modules);
// Replaces all-linear by the names of kLoraModules that the model has outside of its experts.
// Returns the errors of CheckLoraTargets, and INVALID_ARGUMENT for a name that the model has only
// in its experts.
absl::StatusOr<std::vector<std::string>> ResolveTargetModules(
    const std::vector<std::string>& target_modules, const ModelConfig& model);

// Returns whether modules_to_save names the module `name`, by PEFT's rule.
bool IsSavedModule(const std::string& name, const std::vector<std::string>& modules_to_save);
// Returns INVALID_ARGUMENT for a name that is not in kSavedModules or that occurs twice.
absl::Status CheckModulesToSave(const std::vector<std::string>& modules_to_save);
// Sets modules_to_save and ensure_weight_tying for the model. A head that is tied is saved as the
// embedding, as PEFT does with ensure_weight_tying. Returns the errors of CheckModulesToSave, and
// INVALID_ARGUMENT for a name that the model does not have.
absl::Status ResolveModulesToSave(const ModelConfig& model, LoraConfig* lora);

// The numbers of values that are trained in a model with adapters. All are 0 without adapters.
struct LoraCounts {
  int64_t adapters = 0;   // A and B, in float32
  int64_t embedding = 0;  // these are modules_to_save, in the base's type
  int64_t head = 0;       // 0 if it is tied to the embedding
  int64_t norms = 0;
  bool is_on() const { return adapters > 0; }
  int64_t saved() const { return embedding + head + norms; }
  int64_t total() const { return adapters + saved(); }
};
// REQUIRES: ResolveTargetModules made target_modules, and ResolveModulesToSave modules_to_save.
LoraCounts CountLoraParameters(const ModelConfig& model, const LoraConfig& lora);
// Does the same for a configuration that is not resolved. Returns the errors of the two functions,
// with the name of the field in front.
absl::StatusOr<LoraCounts> CountTrained(const ModelConfig& model, LoraConfig lora);

// Returns whether the directory holds an adapter instead of a model.
bool IsAdapterDir(const std::string& dir);
// Reads adapter_config.json. Returns UNIMPLEMENTED for settings that would change the results and
// are not supported: other methods than LoRA, DoRA, biases, patterns of ranks, initial values that
// change the base, and all that are unknown.
absl::StatusOr<LoraConfig> ReadLoraConfig(const std::string& adapter_dir);
// Returns the text of adapter_config.json as PEFT writes it.
std::string LoraConfigJson(const LoraConfig& config);

// Returns `dir`, or the base model's directory if `dir` holds an adapter: base_model_name_or_path,
// which is relative to the working directory, as in PEFT. Returns NOT_FOUND if there is no such
// directory.
absl::StatusOr<std::string> BaseModelDir(const std::string& dir);

}  // namespace taopd
