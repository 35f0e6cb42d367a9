// The checked content of a tokenizer.json. A component that is unknown, or that would change the
// result in a way that is not implemented, is refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/text/bpe/bpe.h"
#include "common/text/bpe/pre_tokenizer.h"
#include "common/text/tokenizer/added_tokens.h"

namespace taopd {

inline constexpr int64_t kMaxTokenizerJsonBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxVocabSize = 1'000'000;

struct TokenizerSpec {
  // The spelling of each id of the model's vocabulary; empty for an id that has none.
  std::vector<std::string> vocab;
  int64_t num_vocab_entries = 0;
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;
  // Whether the file handles bytes that have no token (unk_token, byte_fallback).
  bool handles_unknown_bytes = false;

  bool normalize_nfc = false;
  SplitPattern split_pattern = SplitPattern::kGpt2;
  bool add_prefix_space = false;
  std::vector<AddedToken> added_tokens;  // in the file's order
  // The ids that add_special_tokens adds before and after a sequence.
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
};

// `source` names the text in messages.
absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const std::string& text,
                                                 const std::string& source);

}  // namespace taopd
