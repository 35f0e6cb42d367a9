#include "common/model/architectures/architecture.h"

#include "common/model/config/config_fields.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDefaultSlidingWindow = 4096;  // of transformers' Qwen2Config and its successors
constexpr int64_t kDefaultMaxWindowLayers = 28;

// Returns whether each layer slides, by layer_types, or nullopt if the file has no layer_types.
absl::StatusOr<std::optional<std::vector<bool>>> ReadLayerTypes(const Json& json,
                                                                int64_t num_layers) {
  const Json* types = FindField(json, "layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array()) return InvalidArgument("layer_types is not a list");
  std::vector<bool> slides;
  for (const Json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return Unimplemented(
          "layer_types: ", type.dump().substr(0, 80),
          " is not implemented, only \"full_attention\" and \"sliding_attention\"");
    }
    slides.push_back(type == "sliding_attention");
  }
  if (static_cast<int64_t>(slides.size()) != num_layers) {
    return InvalidArgument("layer_types has ", slides.size(), " entries, num_hidden_layers is ",
                           num_layers);
  }
  return slides;
}

// Returns 0 if no layer slides.
absl::StatusOr<int64_t> ReadWindow(const Json& json) {
  bool use_sliding_window = false;
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "use_sliding_window", &use_sliding_window));
  int64_t window = json.contains("sliding_window") ? 0 : kDefaultSlidingWindow;
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "sliding_window", 1, kMaxPositions, &window));
  return use_sliding_window ? window : 0;
}

}  // namespace

absl::StatusOr<const Architecture*> FindArchitecture(const std::string& name) {
  std::string known;
  for (const ArchitectureFunction function : kArchitectures) {
    const Architecture& architecture = function();
    if (architecture.name == name) return &architecture;
    known += (known.empty() ? "" : ", ") + architecture.name;
  }
  return Unimplemented("architecture \"", name, "\" is not implemented; known: ", known);
}

absl::Status DeriveHeadDim(ModelConfig* config) {
  if (config->head_dim != 0 || config->num_attention_heads == 0) return absl::OkStatus();
  if (config->hidden_size % config->num_attention_heads != 0) {
    return InvalidArgument("hidden_size ", config->hidden_size,
                           " is not a multiple of num_attention_heads ",
                           config->num_attention_heads, " and head_dim is not given");
  }
  config->head_dim = config->hidden_size / config->num_attention_heads;
  return absl::OkStatus();
}

absl::Status RequireKeyValueHeads(const Json& json, ModelConfig* config) {
  if (config->num_key_value_heads != 0) return absl::OkStatus();
  if (!json.contains("num_key_value_heads")) {
    return InvalidArgument("num_key_value_heads is missing");
  }
  config->num_key_value_heads = config->num_attention_heads;
  return absl::OkStatus();
}

absl::Status ReadSlidingLayers(const Json& json, ModelConfig* config) {
  TAOPD_ASSIGN_OR_RETURN(config->sliding_window, ReadWindow(json));
  TAOPD_ASSIGN_OR_RETURN(auto slides, ReadLayerTypes(json, config->num_hidden_layers));
  if (!slides) {
    int64_t max_window_layers = kDefaultMaxWindowLayers;
    TAOPD_RETURN_IF_ERROR(ReadInt(json, "max_window_layers", 0, 1 << 20, &max_window_layers));
    slides.emplace();
    for (int64_t i = 0; i < config->num_hidden_layers; ++i) {
      slides->push_back(config->sliding_window > 0 && i >= max_window_layers);
    }
  }
  config->sliding_layers = *std::move(slides);
  if (config->HasSlidingLayers() && config->sliding_window == 0) {
    return InvalidArgument(
        "layer_types has sliding_attention, but use_sliding_window is not true or sliding_window "
        "is missing");
  }
  if (!config->HasSlidingLayers()) config->sliding_layers.clear();
  if (config->sliding_layers.empty()) config->sliding_window = 0;
  return absl::OkStatus();
}

void WriteSlidingLayers(const ModelConfig& config, Json* json) {
  if (config.sliding_layers.empty()) return;
  (*json)["use_sliding_window"] = true;
  (*json)["sliding_window"] = config.sliding_window;
  Json types = Json::array();
  for (const bool slides : config.sliding_layers) {
    types.push_back(slides ? "sliding_attention" : "full_attention");
  }
  (*json)["layer_types"] = types;
}

absl::Status ReadSlidingWindow(const Json& json, ModelConfig* config) {
  TAOPD_ASSIGN_OR_RETURN(config->sliding_window, ReadWindow(json));
  TAOPD_ASSIGN_OR_RETURN(const auto slides, ReadLayerTypes(json, config->num_hidden_layers));
  const bool all_slide = config->sliding_window > 0;
  config->sliding_layers.assign(all_slide ? config->num_hidden_layers : 0, true);
  if (slides && *slides != std::vector<bool>(slides->size(), all_slide)) {
    return Unimplemented("layer_types that differ from use_sliding_window are not implemented for ",
                         config->architecture);
  }
  return absl::OkStatus();
}

absl::Status RefuseSlidingWindow(const Json& json, const std::string& model) {
  bool use_sliding_window = false;
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "use_sliding_window", &use_sliding_window));
  if (use_sliding_window) {
    return Unimplemented("use_sliding_window true: ", model, " has no sliding window");
  }
  const Json* types = FindField(json, "layer_types");
  if (types == nullptr) return absl::OkStatus();
  if (!types->is_array()) return InvalidArgument("layer_types is not a list");
  for (const Json& type : *types) {
    if (type != "full_attention") {
      return Unimplemented("layer_types: ", type.dump().substr(0, 80), " is not implemented for ",
                           model, ", only \"full_attention\"");
    }
  }
  return absl::OkStatus();
}

}  // namespace taopd
