// tokenizer_config.json and the chat-template files of a model directory: what transformers knows
// of a tokenizer beside tokenizer.json.
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
  // bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token: those that the
  // file gives, with their text.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  // By name; "default" for the only one. Source text, not parsed.
  std::map<std::string, std::string> chat_templates;

  // The text of "eos_token" and the like; nullopt when the file gives none.
  std::optional<std::string> SpecialToken(const std::string& attribute) const;
};

// Chat templates come from chat_template.jinja and additional_chat_templates/*.jinja where there is
// one of them, else from tokenizer_config.json, else from chat_template.json. A directory without
// any of these files is an empty configuration.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::string& model_dir);

// Ids of special tokens in a vocabulary; nullopt where the configuration names none.
struct SpecialTokenIds {
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> pad;
  std::optional<int32_t> unk;
};

// INVALID_ARGUMENT when the configuration names a token that the tokenizer does not have.
absl::StatusOr<SpecialTokenIds> FindSpecialTokens(const TokenizerConfig& config,
                                                  const Tokenizer& tokenizer);

}  // namespace taopd
