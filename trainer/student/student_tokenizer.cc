#include "trainer/student/student_tokenizer.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "common/text/tokenizer/tokenizer_config.h"

namespace taopd {
namespace {

using nlohmann::json;

absl::StatusOr<std::vector<int32_t>> EndIds(const std::string& path, const json& generation) {
  std::vector<int32_t> ids;
  if (!generation.is_object()) return InvalidArgument(path, " is not an object");
  if (!generation.contains("eos_token_id") || generation["eos_token_id"].is_null()) return ids;
  const json& value = generation["eos_token_id"];
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return InvalidArgument(path, ": eos_token_id ", id.dump().substr(0, 80),
                             " is not a token id");
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
  TAOPD_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(tokenizer_dir));
  const auto special = FindSpecialTokens(config, tokenizer);
  if (!special.ok()) return Annotate(special.status(), tokenizer_dir);
  change.bos_token_id = special->bos;
  change.pad_token_id = special->pad;
  const std::string generation_path = tokenizer_dir + "/generation_config.json";
  if (FileExists(generation_path)) {
    TAOPD_ASSIGN_OR_RETURN(const json generation, ReadJsonFile(generation_path));
    TAOPD_ASSIGN_OR_RETURN(change.eos_token_ids, EndIds(generation_path, generation));
  }
  if (change.eos_token_ids.empty() && special->eos) change.eos_token_ids = {*special->eos};
  if (change.eos_token_ids.empty()) {
    return InvalidArgument(tokenizer_dir, ": no eos_token, so no response would ever end");
  }
  return change;
}

}  // namespace taopd
