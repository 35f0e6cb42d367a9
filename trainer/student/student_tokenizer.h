// Reads the properties that a student takes over from another model's tokenizer
// (student.tokenizer).
#pragma once

#include <string>

#include "common/model/config/model_config.h"
#include "common/text/tokenizer/tokenizer.h"

namespace taopd {

// Returns the tokenizer's size and its special tokens: bos_token, pad_token and eos_token of
// tokenizer_config.json. An eos_token_id in a generation_config.json next to it takes precedence
// over eos_token, because chat models end on several tokens. verl sets the same three in the
// model's configuration. Returns INVALID_ARGUMENT for a token that the tokenizer does not have, and
// if no token ends a response.
absl::StatusOr<VocabularyChange> ReadVocabularyChange(const std::string& tokenizer_dir,
                                                      const Tokenizer& tokenizer);

}  // namespace taopd
