// The parts of a tokenizer.json around its model: normalizer, pre-tokenizer, post-processor,
// decoder. Used by tokenizer_json.cc only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "common/text/tokenizer/tokenizer_json.h"

namespace taopd {

absl::Status ParseNormalizer(const nlohmann::json& value, TokenizerSpec* spec);
absl::Status ParsePreTokenizer(const nlohmann::json& value, TokenizerSpec* spec);
absl::Status ParsePostProcessor(const nlohmann::json& value, TokenizerSpec* spec);
absl::Status ParseDecoder(const nlohmann::json& value);

// A boolean member; `absent` when there is none, INVALID_ARGUMENT when it is not a boolean.
absl::StatusOr<bool> BoolMember(const nlohmann::json& object, const std::string& name, bool absent);
// A string member; empty when absent or null.
absl::StatusOr<std::string> StringMember(const nlohmann::json& object, const std::string& name);

}  // namespace taopd
