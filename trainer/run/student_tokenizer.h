// What a student takes over from the directory of another model's tokenizer (student.tokenizer).
#pragma once

#include <string>

#include "common/model/config/model_config.h"
#include "common/text/tokenizer/tokenizer.h"

namespace taopd {

// The tokenizer's size and its special tokens: eos_token, bos_token and pad_token of
// tokenizer_config.json, and in place of eos_token the eos_token_id of a generation_config.json
// beside it (chat models end on several). As verl, which sets the same three in the model's
// configuration. INVALID_ARGUMENT for a token that the tokenizer does not have.
absl::StatusOr<VocabularyChange> ReadVocabularyChange(const std::string& tokenizer_dir,
                                                      const Tokenizer& tokenizer);

}  // namespace taopd
