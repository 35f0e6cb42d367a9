#include "common/model/config/model_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "common/model/architectures/architecture.h"
#include "common/model/config/config_fields.h"
#include "common/model/config/lora_config.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxConfigBytes = 16 << 20;

// Refuses settings that change the results and that this code does not implement.
absl::Status RefuseUnimplemented(const Json& json) {
  std::string hidden_act = "silu";
  TAOPD_RETURN_IF_ERROR(ReadString(json, "hidden_act", &hidden_act));
  if (hidden_act != "silu" && hidden_act != "swish") {
    return Unimplemented("hidden_act \"", hidden_act, "\" is not implemented, only \"silu\"");
  }
  bool use_mrope = false;
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "use_mrope", &use_mrope));
  if (use_mrope) return Unimplemented("use_mrope true is not implemented");
  double attention_dropout = 0.0;
  TAOPD_RETURN_IF_ERROR(ReadReal(json, "attention_dropout", 0.0, 1.0, &attention_dropout));
  if (attention_dropout != 0.0) {
    return Unimplemented("attention_dropout ", attention_dropout, " is not implemented, only 0");
  }
  if (FindField(json, "quantization_config") != nullptr) {
    return Unimplemented("quantization_config: quantized weights are not implemented");
  }
  return absl::OkStatus();
}

absl::Status RequirePositive(const char* key, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return InvalidArgument(key, " is missing");
}

absl::Status ReadSizes(const Json& json, ModelConfig* config) {
  // The bounds are far above any published model; within them, no product of sizes overflows.
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "vocab_size", 1, 1 << 24, &config->vocab_size));
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "hidden_size", 1, 1 << 18, &config->hidden_size));
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "intermediate_size", 1, 1 << 20, &config->intermediate_size));
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "num_hidden_layers", 1, 4096, &config->num_hidden_layers));
  TAOPD_RETURN_IF_ERROR(
      ReadInt(json, "num_attention_heads", 1, 4096, &config->num_attention_heads));
  TAOPD_RETURN_IF_ERROR(
      ReadInt(json, "num_key_value_heads", 1, 4096, &config->num_key_value_heads));
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "head_dim", 1, 1024, &config->head_dim));
  return ReadInt(json, "max_position_embeddings", 1, kMaxPositions,
                 &config->max_position_embeddings);
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
                           " is not a multiple of num_key_value_heads ",
                           config.num_key_value_heads);
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
  const Json* names = FindField(json, "architectures");
  if (names == nullptr) return InvalidArgument("architectures is missing");
  if (!names->is_array() || names->size() != 1 || !(*names)[0].is_string()) {
    return InvalidArgument("architectures ", names->dump().substr(0, 80),
                           " is not a list of one name");
  }
  return (*names)[0].get<std::string>();
}

// The order of the keys is kept for the export.
absl::StatusOr<Json> ParseObject(const std::string& text, const std::string& source) {
  TAOPD_ASSIGN_OR_RETURN(Json json, ParseOrderedJson(text, source));
  if (!json.is_object()) return InvalidArgument(source, " is not a JSON object");
  return json;
}

// Leaves out ids beyond the vocabulary, which some files name: no model can draw them.
absl::StatusOr<std::vector<int32_t>> ReadEndIds(const Json& json, int64_t vocab_size) {
  TAOPD_ASSIGN_OR_RETURN(std::vector<int32_t> ids, ReadTokenIds(json, "eos_token_id"));
  std::erase_if(ids, [&](int32_t id) { return id >= vocab_size; });
  return ids;
}

absl::StatusOr<ModelConfig> ReadConfig(const Json& json) {
  ModelConfig config;
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
  TAOPD_ASSIGN_OR_RETURN(config.rope, ReadRopeConfig(json, config.max_position_embeddings));
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "tie_word_embeddings", &config.tie_word_embeddings));
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "attention_bias", &config.attention_bias));
  config.attention_output_bias = config.attention_bias;
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "mlp_bias", &config.mlp_bias));
  TAOPD_ASSIGN_OR_RETURN(config.eos_token_ids, ReadEndIds(json, config.vocab_size));
  TAOPD_RETURN_IF_ERROR(ReadTokenId(json, "bos_token_id", &config.bos_token_id));
  TAOPD_RETURN_IF_ERROR(ReadTokenId(json, "pad_token_id", &config.pad_token_id));
  config.dtype.clear();
  TAOPD_RETURN_IF_ERROR(ReadString(json, "torch_dtype", &config.dtype));
  TAOPD_RETURN_IF_ERROR(ReadString(json, "dtype", &config.dtype));
  TAOPD_RETURN_IF_ERROR(architecture->fix_config(json, &config));
  TAOPD_RETURN_IF_ERROR(CheckSizes(config));
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text,
                                             const std::string& source) {
  TAOPD_ASSIGN_OR_RETURN(const Json json, ParseObject(json_text, source));
  TAOPD_ASSIGN_OR_RETURN(ModelConfig config, Annotate(ReadConfig(json), source));
  config.raw_json = json_text;
  return config;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& given_dir) {
  TAOPD_ASSIGN_OR_RETURN(const std::string model_dir, BaseModelDir(given_dir));
  const std::string path = model_dir + "/config.json";
  const absl::StatusOr<std::string> text = ReadFileToString(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) {
    return NotFound(
        text.status().message(),
        "; a model is a local directory: download a model of the Hugging Face hub first");
  }
  TAOPD_RETURN_IF_ERROR(text.status());
  TAOPD_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(*text, path));
  const std::string generation_path = model_dir + "/generation_config.json";
  if (FileExists(generation_path)) {
    TAOPD_ASSIGN_OR_RETURN(const std::string generation_text,
                           ReadFileToString(generation_path, kMaxConfigBytes));
    TAOPD_ASSIGN_OR_RETURN(const Json generation, ParseObject(generation_text, generation_path));
    TAOPD_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                           Annotate(ReadEndIds(generation, config.vocab_size), generation_path));
    // As in transformers' generate: if generation_config.json names end ids, those of config.json
    // are ignored.
    if (!ids.empty()) config.eos_token_ids = std::move(ids);
  }
  return config;
}

int64_t ModelConfig::SlidingWindow(int64_t layer) const {
  return layer < static_cast<int64_t>(sliding_layers.size()) && sliding_layers[layer]
             ? sliding_window
             : 0;
}

bool ModelConfig::HasSlidingLayers() const {
  return std::find(sliding_layers.begin(), sliding_layers.end(), true) != sliding_layers.end();
}

bool ModelConfig::IsSparse(int64_t layer) const {
  return layer < static_cast<int64_t>(moe.sparse_layers.size()) && moe.sparse_layers[layer];
}

int64_t ModelConfig::NumParameters() const {
  const int64_t q_size = num_attention_heads * head_dim;
  const int64_t kv_size = num_key_value_heads * head_dim;
  int64_t attention = 2 * hidden_size * q_size + 2 * hidden_size * kv_size;
  if (attention_bias) attention += q_size + 2 * kv_size;
  if (attention_output_bias) attention += hidden_size;
  if (qk_norm) attention += 2 * head_dim;
  int64_t dense_mlp = 3 * hidden_size * intermediate_size;
  if (mlp_bias) dense_mlp += 2 * intermediate_size + hidden_size;
  const int64_t router = moe.num_experts * hidden_size;
  const int64_t experts = moe.num_experts * 3 * hidden_size * moe.intermediate_size;
  int64_t total = (tie_word_embeddings ? 1 : 2) * vocab_size * hidden_size + hidden_size;
  for (int64_t i = 0; i < num_hidden_layers; ++i) {
    total += 2 * hidden_size + attention + (IsSparse(i) ? router + experts : dense_mlp);
  }
  return total;
}

}  // namespace taopd
