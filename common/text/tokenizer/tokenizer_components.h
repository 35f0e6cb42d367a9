// The parts of a tokenizer.json besides its model: normalizer, pre-tokenizer, post-processor and
// decoder. Only tokenizer_json.cc uses this header.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "common/text/tokenizer/tokenizer_json.h"

namespace taopd {

// Each function reads one member of the file, which may be null. The first three write the result
// to `spec`.
absl::Status ParseNormalizer(const nlohmann::json& value, TokenizerSpec* spec);
absl::Status ParsePreTokenizer(const nlohmann::json& value, TokenizerSpec* spec);
absl::Status ParsePostProcessor(const nlohmann::json& value, TokenizerSpec* spec);
absl::Status ParseDecoder(const nlohmann::json& value);

// Returns a boolean member, or `absent` if there is none. Returns INVALID_ARGUMENT if it is not a
// boolean.
absl::StatusOr<bool> BoolMember(const nlohmann::json& object, const std::string& name, bool absent);
// Returns a string member, or an empty string if it is absent or null.
absl::StatusOr<std::string> StringMember(const nlohmann::json& object, const std::string& name);

}  // namespace taopd
