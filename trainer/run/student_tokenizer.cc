#include "trainer/run/student_tokenizer.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "common/io/file.h"
#include "common/io/jsonl.h"

namespace taopd {
namespace {

using nlohmann::json;

// A token is a string or an object with its text under "content"; null and missing are "none".
absl::StatusOr<std::optional<int32_t>> TokenId(const json& config, const std::string& path,
                                               const char* key, const Tokenizer& tokenizer) {
  if (!config.contains(key) || config[key].is_null()) return std::nullopt;
  const json& value = config[key];
  const json& text = value.is_object() && value.contains("content") ? value["content"] : value;
  if (!text.is_string()) return InvalidArgument(path, ": ", key, " is no token");
  const std::string token = text.get<std::string>();
  const std::optional<int32_t> id = tokenizer.TokenToId(token);
  if (!id) return InvalidArgument(path, ": ", key, " \"", token, "\" is not in the tokenizer");
  return id;
}

absl::StatusOr<std::vector<int32_t>> EndIds(const std::string& path, const json& generation) {
  std::vector<int32_t> ids;
  if (!generation.is_object()) return InvalidArgument(path, " is not an object");
  if (!generation.contains("eos_token_id") || generation["eos_token_id"].is_null()) return ids;
  const json& value = generation["eos_token_id"];
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return InvalidArgument(path, ": eos_token_id ", id.dump().substr(0, 80), " is no token id");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

absl::StatusOr<VocabularyChange> ReadVocabularyChange(const std::string& tokenizer_dir,
                                                      const Tokenizer& tokenizer) {
  VocabularyChange change;
  change.num_tokens = tokenizer.vocab_size();
  const std::string path = tokenizer_dir + "/tokenizer_config.json";
  TAOPD_ASSIGN_OR_RETURN(const json config, ReadJsonFile(path));
  if (!config.is_object()) return InvalidArgument(path, " is not an object");
  TAOPD_ASSIGN_OR_RETURN(change.bos_token_id, TokenId(config, path, "bos_token", tokenizer));
  TAOPD_ASSIGN_OR_RETURN(change.pad_token_id, TokenId(config, path, "pad_token", tokenizer));
  TAOPD_ASSIGN_OR_RETURN(const std::optional<int32_t> eos, TokenId(config, path, "eos_token", tokenizer));
  const std::string generation_path = tokenizer_dir + "/generation_config.json";
  if (FileExists(generation_path)) {
    TAOPD_ASSIGN_OR_RETURN(const json generation, ReadJsonFile(generation_path));
    TAOPD_ASSIGN_OR_RETURN(change.eos_token_ids, EndIds(generation_path, generation));
  }
  if (change.eos_token_ids.empty() && eos) change.eos_token_ids = {*eos};
  if (change.eos_token_ids.empty()) {
    return InvalidArgument(path, ": no eos_token, so no response would ever end");
  }
  return change;
}

}  // namespace taopd
