#include "common/model/config/lora_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "common/io/file.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxAdapterConfigBytes = int64_t{1} << 20;

// The Linear layers of one name. The adapter of a layer has inputs_and_outputs * rank values.
struct LoraSizes {
  int64_t num_layers = 0;
  int64_t inputs_and_outputs = 0;  // the sum of both
};
LoraSizes LoraSizesOf(const std::string& module, const ModelConfig& config) {
  const int64_t H = config.hidden_size, I = config.intermediate_size;
  const int64_t Q = config.num_attention_heads * config.head_dim;
  const int64_t K = config.num_key_value_heads * config.head_dim;
  if (module == "q_proj" || module == "o_proj") return {config.num_hidden_layers, H + Q};
  if (module == "k_proj" || module == "v_proj") return {config.num_hidden_layers, H + K};
  int64_t num_dense = 0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) num_dense += config.IsSparse(i) ? 0 : 1;
  return {num_dense, H + I};
}

// The modules of the model that can be saved, with the number of their values.
struct SavedModule {
  std::string name;
  int64_t num_values = 0;
};
std::vector<SavedModule> SavableModules(const ModelConfig& model) {
  const int64_t H = model.hidden_size, L = model.num_hidden_layers;
  const int64_t D = model.qk_norm ? model.head_dim : 0;
  // A layer stands for all layers.
  return {{"model.embed_tokens", model.vocab_size * H},
          {"lm_head", model.tie_word_embeddings ? 0 : model.vocab_size * H},
          {"model.norm", H},
          {"model.layers.0.input_layernorm", L * H},
          {"model.layers.0.post_attention_layernorm", L * H},
          {"model.layers.0.self_attn.q_norm", L * D},
          {"model.layers.0.self_attn.k_norm", L * D}};
}

// Returns INVALID_ARGUMENT for the first of `names` that is not in `known` or occurs twice. `also`
// begins the list of known names in the message.
template <size_t N>
absl::Status CheckNames(const std::vector<std::string>& names, const char* const (&known)[N],
                        const std::string& also) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (std::find(std::begin(known), std::end(known), name) == std::end(known)) {
      std::string words = also;
      for (const char* word : known) words += Concat(words.empty() ? "" : ", ", word);
      return InvalidArgument("\"", name, "\" is not one of ", words);
    }
    if (!seen.insert(name).second) return InvalidArgument("\"", name, "\" occurs twice");
  }
  return absl::OkStatus();
}

bool IsAllLinear(const std::vector<std::string>& target_modules) {
  return target_modules.size() == 1 && target_modules[0] == kAllLinear;
}

// The members that ParseLoraConfig reads, and those that do not change the results of an adapter.
constexpr const char* kKnownMembers[] = {"auto_mapping",
                                         "base_model_name_or_path",
                                         "bias",
                                         "ensure_weight_tying",
                                         "eva_config",
                                         "exclude_modules",
                                         "inference_mode",
                                         "init_lora_weights",
                                         "layers_pattern",
                                         "layers_to_transform",
                                         "loftq_config",
                                         "lora_alpha",
                                         "lora_dropout",
                                         "megatron_core",
                                         "modules_to_save",
                                         "peft_type",
                                         "peft_version",
                                         "qalora_group_size",
                                         "r",
                                         "revision",
                                         "runtime_config",
                                         "target_modules",
                                         "task_type",
                                         "use_rslora"};

bool IsOff(const Json& value) {
  return value.is_null() || value == false || value == "" ||
         ((value.is_object() || value.is_array()) && value.empty());
}

// Other members change the results unless they are off.
absl::Status RefuseUnsupportedAdapter(const Json& json) {
  const std::set<std::string> known(std::begin(kKnownMembers), std::end(kKnownMembers));
  for (const auto& [name, value] : json.items()) {
    if (known.contains(name) || IsOff(value)) continue;
    return Unimplemented(name, " = ", value.dump(), " is not supported");
  }
  if (const std::string type = json.value("peft_type", "LORA"); type != "LORA")
    return Unimplemented("peft_type = ", type, " is not supported, only LORA");
  if (json.contains("bias") && json["bias"] != "none")
    return Unimplemented("bias = ", json["bias"].dump(), " is not supported, only none");
  if (!json.contains("init_lora_weights") || !json["init_lora_weights"].is_string())
    return absl::OkStatus();
  // Other initializations change the base's weights, and the adapter's files do not contain them.
  const std::string init = json["init_lora_weights"];
  if (init == "gaussian" || init == "eva" || init == "orthogonal") return absl::OkStatus();
  return Unimplemented("init_lora_weights = ", init, " is not supported");
}

// Returns the names of a list, sorted; an empty list for a member of another type.
std::vector<std::string> NamesOf(const Json& json, const char* member) {
  std::vector<std::string> names;
  if (!json.contains(member) || !json[member].is_array()) return names;
  for (const Json& name : json[member]) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Reads the members of LoraConfig. Patterns in target_modules are not needed for loading, because
// the file of the weights says which modules have an adapter.
absl::StatusOr<LoraConfig> ParseLoraConfig(const Json& json) {
  if (!json.is_object()) return InvalidArgument("is not a JSON object");
  TAOPD_RETURN_IF_ERROR(RefuseUnsupportedAdapter(json));
  LoraConfig config;
  if (!json.contains("r") || !json["r"].is_number_integer() || json["r"] < 1 ||
      json["r"] > kMaxLoraRank) {
    return InvalidArgument("r must be a number between 1 and ", kMaxLoraRank);
  }
  config.rank = json["r"].get<int64_t>();
  if (!json.contains("lora_alpha") || !json["lora_alpha"].is_number() || json["lora_alpha"] <= 0)
    return InvalidArgument("lora_alpha must be a positive number");
  config.alpha = json["lora_alpha"].get<double>();
  config.use_rslora = json.value("use_rslora", false);
  config.dropout = json.value("lora_dropout", 0.0);
  if (json.contains("init_lora_weights") && json["init_lora_weights"] == "gaussian")
    config.init = LoraInit::kGaussian;
  if (json.contains("base_model_name_or_path") && json["base_model_name_or_path"].is_string())
    config.base_model = json["base_model_name_or_path"].get<std::string>();
  config.ensure_weight_tying = json.value("ensure_weight_tying", false);
  config.target_modules = NamesOf(json, "target_modules");
  config.modules_to_save = NamesOf(json, "modules_to_save");
  if (json.contains("modules_to_save") && !IsOff(json["modules_to_save"]) &&
      config.modules_to_save.size() != json["modules_to_save"].size()) {
    return InvalidArgument("modules_to_save must be a list of names");
  }
  return config;
}

}  // namespace

double LoraConfig::Scale() const {
  return alpha / (use_rslora ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

bool IsLoraTarget(const std::string& name, const std::vector<std::string>& target_modules) {
  return std::any_of(target_modules.begin(), target_modules.end(), [&](const std::string& target) {
    return name == target || name.ends_with("." + target);
  });
}

absl::Status CheckLoraTargets(const std::vector<std::string>& target_modules) {
  if (IsAllLinear(target_modules)) return absl::OkStatus();
  if (target_modules.empty()) return InvalidArgument("must name at least one module");
  return CheckNames(target_modules, kLoraModules, Concat(kAllLinear, " (alone)"));
}

absl::StatusOr<std::vector<std::string>> ResolveTargetModules(
    const std::vector<std::string>& target_modules, const ModelConfig& model) {
  TAOPD_RETURN_IF_ERROR(CheckLoraTargets(target_modules));
  std::vector<std::string> resolved = target_modules;
  if (IsAllLinear(target_modules)) {
    resolved.assign(std::begin(kLoraModules), std::end(kLoraModules));
    std::erase_if(resolved, [&](const std::string& module) {
      return LoraSizesOf(module, model).num_layers == 0;
    });
  }
  for (const std::string& module : resolved) {
    if (LoraSizesOf(module, model).num_layers > 0) continue;
    return InvalidArgument("the model has \"", module,
                           "\" only in its experts, which can have no adapter");
  }
  return resolved;
}

bool IsSavedModule(const std::string& name, const std::vector<std::string>& modules_to_save) {
  return std::any_of(modules_to_save.begin(), modules_to_save.end(),
                     [&](const std::string& end) { return name.ends_with(end); });
}

absl::Status CheckModulesToSave(const std::vector<std::string>& modules_to_save) {
  return CheckNames(modules_to_save, kSavedModules, "");
}

absl::Status ResolveModulesToSave(const ModelConfig& model, LoraConfig* lora) {
  std::vector<std::string>& names = lora->modules_to_save;
  TAOPD_RETURN_IF_ERROR(CheckModulesToSave(names));
  if (model.tie_word_embeddings) {
    std::replace(names.begin(), names.end(), std::string("lm_head"), std::string("embed_tokens"));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  lora->ensure_weight_tying =
      model.tie_word_embeddings && IsSavedModule("model.embed_tokens", names);
  for (const std::string& name : names) {
    int64_t num_values = 0;
    for (const SavedModule& module : SavableModules(model)) {
      if (IsSavedModule(module.name, {name})) num_values += module.num_values;
    }
    if (num_values == 0) return InvalidArgument("the model has no \"", name, "\"");
  }
  return absl::OkStatus();
}

LoraCounts CountLoraParameters(const ModelConfig& model, const LoraConfig& lora) {
  LoraCounts counts;
  for (const std::string& module : lora.target_modules) {
    const LoraSizes sizes = LoraSizesOf(module, model);
    counts.adapters += sizes.num_layers * sizes.inputs_and_outputs * lora.rank;
  }
  for (const auto& [name, num_values] : SavableModules(model)) {
    if (!IsSavedModule(name, lora.modules_to_save)) continue;
    int64_t& count = name == "model.embed_tokens" ? counts.embedding
                     : name == "lm_head"          ? counts.head
                                                  : counts.norms;
    count += num_values;
  }
  return counts;
}

absl::StatusOr<LoraCounts> CountTrained(const ModelConfig& model, LoraConfig lora) {
  TAOPD_ASSIGN_OR_RETURN(
      lora.target_modules,
      Annotate(ResolveTargetModules(lora.target_modules, model), "lora.target_modules"));
  TAOPD_RETURN_IF_ERROR(Annotate(ResolveModulesToSave(model, &lora), "lora.modules_to_save"));
  return CountLoraParameters(model, lora);
}

bool IsAdapterDir(const std::string& dir) {
  return FileExists(dir + "/" + kAdapterConfigFile) && !FileExists(dir + "/config.json");
}

absl::StatusOr<LoraConfig> ReadLoraConfig(const std::string& adapter_dir) {
  const std::string path = adapter_dir + "/" + kAdapterConfigFile;
  TAOPD_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, kMaxAdapterConfigBytes));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgument(path, ": is not JSON");
  try {
    return Annotate(ParseLoraConfig(json), path);
  } catch (const Json::exception& error) {  // a member of another type
    return InvalidArgument(path, ": ", error.what());
  }
}

std::string LoraConfigJson(const LoraConfig& config) {
  Json json;
  json["alpha_pattern"] = Json::object();
  json["auto_mapping"] = nullptr;
  json["base_model_name_or_path"] = config.base_model;
  json["bias"] = "none";
  json["ensure_weight_tying"] = config.ensure_weight_tying;
  json["fan_in_fan_out"] = false;
  json["inference_mode"] = true;
  json["init_lora_weights"] = config.init == LoraInit::kGaussian ? Json("gaussian") : Json(true);
  json["layers_pattern"] = nullptr;
  json["layers_to_transform"] = nullptr;
  // PEFT accepts a whole number as a float, but shows it as it was written.
  const auto whole_alpha = static_cast<int64_t>(config.alpha);
  json["lora_alpha"] =
      config.alpha == std::floor(config.alpha) ? Json(whole_alpha) : Json(config.alpha);
  json["lora_dropout"] = config.dropout;
  json["modules_to_save"] = config.modules_to_save.empty() ? Json() : Json(config.modules_to_save);
  json["peft_type"] = "LORA";
  json["r"] = config.rank;
  json["rank_pattern"] = Json::object();
  json["revision"] = nullptr;
  json["target_modules"] = config.target_modules;
  json["task_type"] = "CAUSAL_LM";
  json["use_dora"] = false;
  json["use_rslora"] = config.use_rslora;
  return json.dump(2) + "\n";
}

absl::StatusOr<std::string> BaseModelDir(const std::string& dir) {
  if (!IsAdapterDir(dir)) return dir;
  TAOPD_ASSIGN_OR_RETURN(const LoraConfig config, ReadLoraConfig(dir));
  std::error_code error;
  if (config.base_model.empty() || !std::filesystem::is_directory(config.base_model, error)) {
    return NotFound(dir, "/", kAdapterConfigFile, ": base_model_name_or_path = \"",
                    config.base_model, "\" is not a directory of this machine");
  }
  return config.base_model;
}

}  // namespace taopd
