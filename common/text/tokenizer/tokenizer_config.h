// The contents of tokenizer_config.json, special_tokens_map.json and the chat-template files of a
// model directory: what transformers knows of a tokenizer in addition to tokenizer.json.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/text/tokenizer/tokenizer.h"

namespace taopd {

struct TokenizerConfig {
  // The names and texts of the special tokens that the files give: bos_token, eos_token, unk_token,
  // sep_token, pad_token, cls_token and mask_token.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  // The source text of each template by its name. A single template has the name "default".
  std::map<std::string, std::string> chat_templates;

  // Returns the text of "eos_token" or another special token, or nullopt if the files do not give
  // it.
  std::optional<std::string> SpecialToken(const std::string& attribute) const;
};

// Reads the configuration of a model directory. As in transformers, the special tokens of
// special_tokens_map.json, which older programs wrote, replace those of a tokenizer_config.json
// without added_tokens_decoder, and are ignored beside one that has it. The chat templates come
// from the first of these sources that has any:
//   chat_template.jinja and additional_chat_templates/*.jinja
//   tokenizer_config.json
//   chat_template.json
// A directory without any of these files has an empty configuration. Errors name the path.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::string& model_dir);

// The ids of special tokens in a vocabulary; nullopt for those that the configuration does not
// name.
struct SpecialTokenIds {
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> pad;
  std::optional<int32_t> unk;
};

// Returns INVALID_ARGUMENT if the configuration names a token that the tokenizer does not have.
absl::StatusOr<SpecialTokenIds> FindSpecialTokens(const TokenizerConfig& config,
                                                  const Tokenizer& tokenizer);

}  // namespace taopd
