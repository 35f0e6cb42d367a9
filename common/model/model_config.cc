#include "common/model/model_config.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "common/model/architecture.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxConfigBytes = 16 << 20;

const Json* Find(const Json& json, const char* key) {
  const auto it = json.find(key);
  return it == json.end() || it->is_null() ? nullptr : &*it;
}

// Leaves *value alone where the key is missing or null.
absl::Status ReadInt(const Json& json, const char* key, int64_t min, int64_t max, int64_t* value) {
  const Json* found = Find(json, key);
  if (found == nullptr) return absl::OkStatus();
  const bool whole = found->is_number_integer();
  if (!whole || (found->is_number_unsigned() &&
                 found->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})) {
    return InvalidArgument(key, " ", found->dump().substr(0, 80), " is not a whole number");
  }
  const int64_t number = found->get<int64_t>();
  if (number < min || number > max) {
    return InvalidArgument(key, " ", number, " is not between ", min, " and ", max);
  }
  *value = number;
  return absl::OkStatus();
}

absl::Status ReadReal(const Json& json, const char* key, double min, double max, double* value) {
  const Json* found = Find(json, key);
  if (found == nullptr) return absl::OkStatus();
  const double number = found->is_number() ? found->get<double>() : std::nan("");
  if (!(number >= min && number <= max)) {
    return InvalidArgument(key, " ", found->dump().substr(0, 80), " is not a number between ", min,
                           " and ", max);
  }
  *value = number;
  return absl::OkStatus();
}

absl::Status ReadBool(const Json& json, const char* key, bool* value) {
  const Json* found = Find(json, key);
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_boolean()) {
    return InvalidArgument(key, " ", found->dump().substr(0, 80), " is neither true nor false");
  }
  *value = found->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadString(const Json& json, const char* key, std::string* value) {
  const Json* found = Find(json, key);
  if (found == nullptr) return absl::OkStatus();
  if (!found->is_string()) {
    return InvalidArgument(key, " ", found->dump().substr(0, 80), " is not a string");
  }
  *value = found->get<std::string>();
  return absl::OkStatus();
}

// One id or a list of ids; -1 is how older files say "none".
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const Json& json, const char* key) {
  std::vector<int32_t> ids;
  const Json* found = Find(json, key);
  if (found == nullptr) return ids;
  const Json list = found->is_array() ? *found : Json::array({*found});
  std::set<int64_t> seen;
  for (const Json& item : list) {
    const Json wrapped = {{key, item}};
    int64_t id = -1;
    TAOPD_RETURN_IF_ERROR(ReadInt(wrapped, key, -1, std::numeric_limits<int32_t>::max(), &id));
    if (id >= 0 && seen.insert(id).second) ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

absl::Status ReadTokenId(const Json& json, const char* key, std::optional<int32_t>* id) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadTokenIds(json, key));
  if (ids.size() > 1)
    return InvalidArgument(key, " holds ", ids.size(), " ids, at most 1 is meant");
  if (!ids.empty()) *id = ids[0];
  return absl::OkStatus();
}

// rope_theta and rope_scaling (older files), or both together as rope_parameters (transformers 5).
absl::Status ReadRope(const Json& json, ModelConfig* config) {
  const double kMaxTheta = 1e12;
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "rope_theta", 1.0, kMaxTheta, &config->rope_theta));
  double partial_rotary_factor = 1.0;
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "partial_rotary_factor", 0.0, 1.0, &partial_rotary_factor));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = Find(json, key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) return InvalidArgument(key, " is not an object");
    std::string type = "default";
    TAOPD_RETURN_IF_ERROR(Annotate(ReadString(*rope, "type", &type), key));
    TAOPD_RETURN_IF_ERROR(Annotate(ReadString(*rope, "rope_type", &type), key));
    if (type != "default") {
      return Unimplemented(key, " of type \"", type, "\" is not implemented, only \"default\"");
    }
    for (const auto& [name, value] : rope->items()) {
      if (name != "type" && name != "rope_type" && name != "rope_theta" &&
          name != "partial_rotary_factor") {
        return Unimplemented(key, ".", name, " is not implemented");
      }
    }
    TAOPD_RETURN_IF_ERROR(
        Annotate(ReadReal(*rope, "rope_theta", 1.0, kMaxTheta, &config->rope_theta), key));
    TAOPD_RETURN_IF_ERROR(
        Annotate(ReadReal(*rope, "partial_rotary_factor", 0.0, 1.0, &partial_rotary_factor), key));
  }
  if (partial_rotary_factor != 1.0) {
    return Unimplemented("partial_rotary_factor ", partial_rotary_factor,
                         " is not implemented, only 1");
  }
  return absl::OkStatus();
}

// Settings that change the numbers and that no code here follows.
absl::Status RefuseUnimplemented(const Json& json) {
  std::string hidden_act = "silu";
  TAOPD_RETURN_IF_ERROR(ReadString(json, "hidden_act", &hidden_act));
  if (hidden_act != "silu" && hidden_act != "swish") {
    return Unimplemented("hidden_act \"", hidden_act, "\" is not implemented, only \"silu\"");
  }
  bool use_sliding_window = false;
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "use_sliding_window", &use_sliding_window));
  if (use_sliding_window) return Unimplemented("use_sliding_window true is not implemented");
  if (const Json* layer_types = Find(json, "layer_types")) {
    if (!layer_types->is_array()) return InvalidArgument("layer_types is not a list");
    for (const Json& type : *layer_types) {
      if (type != "full_attention") {
        return Unimplemented("layer_types: ", type.dump().substr(0, 80),
                             " is not implemented, only \"full_attention\"");
      }
    }
  }
  double attention_dropout = 0.0;
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "attention_dropout", 0.0, 1.0, &attention_dropout));
  if (attention_dropout != 0.0) {
    return Unimplemented("attention_dropout ", attention_dropout, " is not implemented, only 0");
  }
  if (Find(json, "quantization_config") != nullptr) {
    return Unimplemented("quantization_config: quantised weights are not implemented");
  }
  return absl::OkStatus();
}

absl::Status RequirePositive(const char* key, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return InvalidArgument(key, " is missing");
}

absl::Status ReadSizes(const Json& json, ModelConfig* config) {
  // Bounds far above any published model; within them no product of sizes overflows.
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "vocab_size", 1, 1 << 24, &config->vocab_size));
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "hidden_size", 1, 1 << 18, &config->hidden_size));
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "intermediate_size", 1, 1 << 20, &config->intermediate_size));
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "num_hidden_layers", 1, 4096, &config->num_hidden_layers));
  TAOPD_RETURN_IF_ERROR(
      ReadInt(json, "num_attention_heads", 1, 4096, &config->num_attention_heads));
  TAOPD_RETURN_IF_ERROR(
      ReadInt(json, "num_key_value_heads", 1, 4096, &config->num_key_value_heads));
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "head_dim", 1, 1024, &config->head_dim));
  TAOPD_RETURN_IF_ERROR(
      ReadInt(json, "max_position_embeddings", 1, 1 << 26, &config->max_position_embeddings));
  return absl::OkStatus();
}

absl::Status CheckSizes(const ModelConfig& config) {
  TAOPD_RETURN_IF_ERROR(RequirePositive("vocab_size", config.vocab_size));
  TAOPD_RETURN_IF_ERROR(RequirePositive("hidden_size", config.hidden_size));
  TAOPD_RETURN_IF_ERROR(RequirePositive("intermediate_size", config.intermediate_size));
  TAOPD_RETURN_IF_ERROR(RequirePositive("num_hidden_layers", config.num_hidden_layers));
  TAOPD_RETURN_IF_ERROR(RequirePositive("num_attention_heads", config.num_attention_heads));
  TAOPD_RETURN_IF_ERROR(RequirePositive("num_key_value_heads", config.num_key_value_heads));
  TAOPD_RETURN_IF_ERROR(RequirePositive("head_dim", config.head_dim));
  TAOPD_RETURN_IF_ERROR(RequirePositive("max_position_embeddings", config.max_position_embeddings));
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    return InvalidArgument("num_attention_heads ", config.num_attention_heads,
                           " is no multiple of num_key_value_heads ", config.num_key_value_heads);
  }
  if (config.head_dim % 2 != 0) {
    return InvalidArgument("head_dim ", config.head_dim, " is odd; rotary positions need pairs");
  }
  if (config.pad_token_id && *config.pad_token_id >= config.vocab_size) {
    return InvalidArgument("pad_token_id ", *config.pad_token_id, " is not below vocab_size ",
                           config.vocab_size);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadArchitectureName(const Json& json) {
  const Json* names = Find(json, "architectures");
  if (names == nullptr) return InvalidArgument("architectures is missing");
  if (!names->is_array() || names->size() != 1 || !(*names)[0].is_string()) {
    return InvalidArgument("architectures ", names->dump().substr(0, 80),
                           " is not a list of one name");
  }
  return (*names)[0].get<std::string>();
}

// The limits on depth and duplicate keys are ParseJson's; the order of the keys is kept for export.
absl::StatusOr<Json> ParseObject(const std::string& text, const std::string& source) {
  TAOPD_RETURN_IF_ERROR(ParseJson(text, source).status());
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument(source, " is not a JSON object");
  return json;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text) {
  TAOPD_ASSIGN_OR_RETURN(const Json json, ParseObject(json_text, "config.json"));
  ModelConfig config;
  config.raw_json = json_text;
  TAOPD_ASSIGN_OR_RETURN(config.architecture, ReadArchitectureName(json));
  TAOPD_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(config.architecture));
  std::string model_type = architecture->model_type;
  TAOPD_RETURN_IF_ERROR(ReadString(json, "model_type", &model_type));
  if (model_type != architecture->model_type) {
    return InvalidArgument("model_type \"", model_type, "\" does not fit architecture \"",
                           config.architecture, "\", whose model_type is \"",
                           architecture->model_type, "\"");
  }
  TAOPD_RETURN_IF_ERROR(RefuseUnimplemented(json));
  TAOPD_RETURN_IF_ERROR(ReadSizes(json, &config));
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "rms_norm_eps", 0.0, 1.0, &config.rms_norm_eps));
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "initializer_range", 0.0, 1.0, &config.initializer_range));
  TAOPD_RETURN_IF_ERROR(ReadRope(json, &config));
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "tie_word_embeddings", &config.tie_word_embeddings));
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "attention_bias", &config.attention_bias));
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "mlp_bias", &config.mlp_bias));
  TAOPD_ASSIGN_OR_RETURN(config.eos_token_ids, ReadTokenIds(json, "eos_token_id"));
  TAOPD_RETURN_IF_ERROR(ReadTokenId(json, "bos_token_id", &config.bos_token_id));
  TAOPD_RETURN_IF_ERROR(ReadTokenId(json, "pad_token_id", &config.pad_token_id));
  config.dtype.clear();
  TAOPD_RETURN_IF_ERROR(ReadString(json, "torch_dtype", &config.dtype));
  TAOPD_RETURN_IF_ERROR(ReadString(json, "dtype", &config.dtype));
  TAOPD_RETURN_IF_ERROR(architecture->fix_config(json, &config));
  TAOPD_RETURN_IF_ERROR(CheckSizes(config));
  return config;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir) {
  const std::string path = model_dir + "/config.json";
  TAOPD_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, kMaxConfigBytes));
  absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (!config.ok()) return Annotate(config.status(), path);
  const std::string generation_path = model_dir + "/generation_config.json";
  if (FileExists(generation_path)) {
    TAOPD_ASSIGN_OR_RETURN(const std::string generation_text,
                           ReadFileToString(generation_path, kMaxConfigBytes));
    TAOPD_ASSIGN_OR_RETURN(const Json generation, ParseObject(generation_text, generation_path));
    absl::StatusOr<std::vector<int32_t>> ids = ReadTokenIds(generation, "eos_token_id");
    if (!ids.ok()) return Annotate(ids.status(), generation_path);
    // As transformers' generate: where generation_config.json names end ids, config.json's do not
    // count.
    if (!ids->empty()) config->eos_token_ids = *std::move(ids);
  }
  return config;
}

int64_t ModelConfig::NumParameters() const {
  const int64_t q_size = num_attention_heads * head_dim;
  const int64_t kv_size = num_key_value_heads * head_dim;
  int64_t layer = 2 * hidden_size + 2 * hidden_size * q_size + 2 * hidden_size * kv_size +
                  3 * hidden_size * intermediate_size;
  if (attention_bias) layer += q_size + 2 * kv_size + hidden_size;
  if (mlp_bias) layer += 2 * intermediate_size + hidden_size;
  if (qk_norm) layer += 2 * head_dim;
  const int64_t embeddings = (tie_word_embeddings ? 1 : 2) * vocab_size * hidden_size;
  return embeddings + num_hidden_layers * layer + hidden_size;
}

int64_t ModelConfig::KvBytesPerToken(int64_t bytes_per_value) const {
  return 2 * num_hidden_layers * num_key_value_heads * head_dim * bytes_per_value;
}

}  // namespace taopd
