#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/model/architectures/architecture.h"
#include "common/model/config/model_config.h"

namespace taopd {
namespace {

nlohmann::ordered_json TokenIdsJson(const std::vector<int32_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids[0];
  return ids;
}

nlohmann::ordered_json TokenIdJson(const std::optional<int32_t>& id) {
  if (!id) return nullptr;
  return *id;
}

nlohmann::ordered_json JsonOfFields(const ModelConfig& config) {
  nlohmann::ordered_json json;
  json["architectures"] = {config.architecture};
  const auto architecture = FindArchitecture(config.architecture);
  if (architecture.ok()) json["model_type"] = (*architecture)->model_type;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_hidden_layers;
  json["num_attention_heads"] = config.num_attention_heads;
  json["num_key_value_heads"] = config.num_key_value_heads;
  json["head_dim"] = config.head_dim;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.rms_norm_eps;
  WriteRopeConfig(config.rope, &json);
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  json["attention_bias"] = config.attention_bias;
  if (config.mlp_bias) json["mlp_bias"] = true;
  if (architecture.ok() && (*architecture)->write_config != nullptr) {
    (*architecture)->write_config(config, &json);
  }
  json["initializer_range"] = config.initializer_range;
  json["eos_token_id"] = TokenIdsJson(config.eos_token_ids);
  json["bos_token_id"] = TokenIdJson(config.bos_token_id);
  json["pad_token_id"] = TokenIdJson(config.pad_token_id);
  return json;
}

}  // namespace

absl::Status ChangeVocabulary(const VocabularyChange& change, ModelConfig* config) {
  constexpr int64_t kMaxVocabulary = 1 << 24;
  if (change.num_tokens < 0 || change.num_tokens > kMaxVocabulary) {
    return InvalidArgument("a tokenizer of ", change.num_tokens, " tokens is not between 0 and ",
                           kMaxVocabulary);
  }
  config->vocab_size = std::max(config->vocab_size, change.num_tokens);
  std::vector<int32_t> ids = change.eos_token_ids;
  if (change.bos_token_id) ids.push_back(*change.bos_token_id);
  if (change.pad_token_id) ids.push_back(*change.pad_token_id);
  for (const int32_t id : ids) {
    if (id < 0 || id >= config->vocab_size) {
      return InvalidArgument("special token id ", id, " is not below vocab_size ",
                             config->vocab_size);
    }
  }
  config->eos_token_ids = change.eos_token_ids;
  config->bos_token_id = change.bos_token_id;
  config->pad_token_id = change.pad_token_id;
  if (config->raw_json.empty()) return absl::OkStatus();
  auto json = nlohmann::ordered_json::parse(config->raw_json);
  json["vocab_size"] = config->vocab_size;
  json["eos_token_id"] = TokenIdsJson(config->eos_token_ids);
  json["bos_token_id"] = TokenIdJson(config->bos_token_id);
  json["pad_token_id"] = TokenIdJson(config->pad_token_id);
  config->raw_json = json.dump(2);
  return absl::OkStatus();
}

std::string ModelConfigJson(const ModelConfig& config) {
  nlohmann::ordered_json json = config.raw_json.empty()
                                    ? JsonOfFields(config)
                                    : nlohmann::ordered_json::parse(config.raw_json);
  // "dtype" is transformers 5's name of "torch_dtype"; where a file has both, both must agree.
  if (json.contains("dtype")) json["dtype"] = config.dtype;
  if (json.contains("torch_dtype") || !json.contains("dtype")) json["torch_dtype"] = config.dtype;
  return json.dump(2) + "\n";
}

}  // namespace taopd
