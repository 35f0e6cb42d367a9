#include "common/text/tokenizer/tokenizer.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <span>
#include <utility>

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "common/text/bpe/bpe.h"
#include "common/text/bpe/byte_level.h"
#include "common/text/bpe/word_cache.h"
#include "common/text/tokenizer/added_tokens.h"
#include "common/text/tokenizer/tokenizer_json.h"
#include "common/text/unicode/unicode.h"

namespace taopd {
namespace {

struct Token {
  std::string spelling;
  std::string bytes;
  bool is_special = false;
};

// Hashes the id, spelling and options of every token, and the merges by id. Each string follows its
// length, so that no two contents write the same bytes.
std::string CanonicalHash(const std::vector<Token>& tokens, const TokenizerSpec& spec) {
  Sha256 hash;
  auto add_number = [&](int64_t value) {
    std::array<std::byte, 8> bytes;
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
    hash.Update(bytes);
  };
  auto add_string = [&](std::string_view text) {
    add_number(static_cast<int64_t>(text.size()));
    hash.Update(text);
  };
  add_number(static_cast<int64_t>(tokens.size()));
  for (const Token& token : tokens) add_string(token.spelling);
  add_number(static_cast<int64_t>(spec.merges.size()));
  for (const BpeMerge& merge : spec.merges) {
    add_number(merge.left_id);
    add_number(merge.right_id);
  }
  std::vector<AddedToken> added_tokens = spec.added_tokens;
  std::sort(added_tokens.begin(), added_tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  add_number(static_cast<int64_t>(added_tokens.size()));
  for (const AddedToken& token : added_tokens) {
    add_number(token.id);
    add_number(token.special | token.single_word << 1 | token.lstrip << 2 | token.rstrip << 3 |
               token.normalized << 4);
  }
  return hash.HexDigest();
}

// Returns the token of each byte, or -1 if there is none.
absl::StatusOr<std::array<int32_t, 256>> ByteIds(
    const absl::flat_hash_map<std::string, int32_t>& ids_by_bytes, bool handles_unknown_bytes) {
  std::array<int32_t, 256> byte_ids;
  int num_missing = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids_by_bytes.find(std::string(1, static_cast<char>(byte)));
    byte_ids[byte] = found == ids_by_bytes.end() ? -1 : found->second;
    if (byte_ids[byte] < 0) ++num_missing;
  }
  if (num_missing > 0 && handles_unknown_bytes) {
    return Unimplemented(
        "model: ", num_missing,
        " bytes have no token, and unk_token or byte_fallback for them is not supported");
  }
  if (num_missing > 0) {
    LogDebug("the tokenizer has no token for some bytes", {{"num_bytes", num_missing}});
  }
  return byte_ids;
}

class ByteLevelBpeTokenizer final : public Tokenizer {
 public:
  ByteLevelBpeTokenizer(TokenizerSpec spec, std::vector<Token> tokens,
                        absl::flat_hash_map<std::string, int32_t> token_ids,
                        std::unique_ptr<Bpe> bpe, std::vector<AddedToken> raw_added,
                        std::vector<AddedToken> normalized_added)
      : hash_(CanonicalHash(tokens, spec)),
        spec_(std::move(spec)),
        tokens_(std::move(tokens)),
        token_ids_(std::move(token_ids)),
        bpe_(std::move(bpe)),
        raw_added_(std::move(raw_added)),
        normalized_added_(std::move(normalized_added)) {}

  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens) const override {
    std::vector<int32_t> ids;
    // English text has four bytes per token.
    ids.reserve(text.size() / 4 + spec_.prefix_ids.size() + spec_.suffix_ids.size() + 8);
    if (add_special_tokens) ids = spec_.prefix_ids;
    WarnOfLoss(text);
    const WordCachePool::Lease cache(&caches_);
    const std::string repaired = IsValidUtf8(text) ? "" : RepairUtf8(text);
    ForEachPiece(
        repaired.empty() ? text : repaired, [&](int32_t id) { ids.push_back(id); },
        [&](std::string_view piece) { EncodeWords(piece, cache.get(), &ids); });
    if (add_special_tokens) {
      ids.insert(ids.end(), spec_.suffix_ids.begin(), spec_.suffix_ids.end());
    }
    return ids;
  }

  int64_t CountUnknownBytes(std::string_view text) const override {
    int64_t count = 0;
    if (!bpe_->drops_bytes()) return count;
    ForEachPiece(
        RepairUtf8(text), [](int32_t) {},
        [&](std::string_view piece) {
          while (!piece.empty()) {
            const size_t size_bytes = FirstPieceBytes(spec_.split_pattern, piece);
            count += bpe_->CountDropped(piece.substr(0, size_bytes));
            piece.remove_prefix(size_bytes);
          }
        });
    return count;
  }

  std::string Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const override {
    std::string bytes;
    for (const int32_t id : ids) {
      const Token* token = Find(id);
      if (token == nullptr || (skip_special_tokens && token->is_special)) continue;
      bytes += token->bytes;
    }
    if (!IsValidUtf8(bytes)) bytes = RepairUtf8(bytes);
    return bytes;
  }

  std::string TokenBytes(int32_t id) const override {
    const Token* token = Find(id);
    return token == nullptr ? "" : token->bytes;
  }
  std::string IdToToken(int32_t id) const override {
    const Token* token = Find(id);
    return token == nullptr ? "" : token->spelling;
  }
  std::optional<int32_t> TokenToId(std::string_view token) const override {
    const auto found = token_ids_.find(absl::string_view(token.data(), token.size()));
    if (found == token_ids_.end()) return std::nullopt;
    return found->second;
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  const std::string& hash() const override { return hash_; }

 private:
  // Reports once in the tokenizer's lifetime that a text loses bytes. It costs nothing if every
  // byte has a token, as in all vocabularies except toy ones.
  void WarnOfLoss(std::string_view text) const {
    if (!bpe_->drops_bytes() || has_warned_.load(std::memory_order_relaxed)) return;
    const int64_t num_lost = CountUnknownBytes(text);
    if (num_lost == 0 || has_warned_.exchange(true)) return;
    LogWarning("a text loses bytes for which the tokenizer has no token",
               {{"lost_bytes", num_lost}, {"text_bytes", text.size()}});
  }

  const Token* Find(int32_t id) const {
    return id >= 0 && id < vocab_size() ? &tokens_[id] : nullptr;
  }

  // Goes from left to right: calls on_token(id) for an added token, and on_text(piece) for the text
  // between two. Added tokens of the raw text come first; the text between them is normalized and
  // searched for the others.
  template <typename OnToken, typename OnText>
  void ForEachPiece(std::string_view text, const OnToken& on_token, const OnText& on_text) const {
    const auto on_normalized = [&](int32_t id, std::string_view piece) {
      if (id >= 0) {
        on_token(id);
      } else if (spec_.add_prefix_space && piece[0] != ' ') {
        on_text(std::string(" ").append(piece));
      } else {
        on_text(piece);
      }
    };
    raw_added_.Split(text, [&](int32_t id, std::string_view piece) {
      if (id >= 0) {
        on_token(id);
      } else if (spec_.normalize_nfc) {
        normalized_added_.Split(NormalizeNfc(piece), on_normalized);
      } else {
        normalized_added_.Split(piece, on_normalized);
      }
    });
  }

  void EncodeWords(std::string_view text, WordCache* cache, std::vector<int32_t>* ids) const {
    std::array<std::string_view, 64> words;
    while (!text.empty()) {
      size_t num_words = 0;
      while (num_words < words.size() && !text.empty()) {
        const size_t size_bytes = FirstPieceBytes(spec_.split_pattern, text);
        words[num_words++] = text.substr(0, size_bytes);
        text.remove_prefix(size_bytes);
      }
      bpe_->Encode(std::span(words).first(num_words), cache, ids);
    }
  }

  std::string hash_;
  TokenizerSpec spec_;
  std::vector<Token> tokens_;
  absl::flat_hash_map<std::string, int32_t> token_ids_;
  std::unique_ptr<Bpe> bpe_;
  AddedTokenMatcher raw_added_;
  AddedTokenMatcher normalized_added_;
  mutable WordCachePool caches_;
  mutable std::atomic<bool> has_warned_{false};
};

// Returns the added tokens to look for after normalization, with normalized contents.
absl::StatusOr<std::vector<AddedToken>> NormalizedAddedTokens(const TokenizerSpec& spec) {
  std::vector<AddedToken> normalized;
  std::set<std::string> contents;
  for (AddedToken token : spec.added_tokens) {
    if (!token.normalized) continue;
    if (spec.normalize_nfc) token.content = NormalizeNfc(token.content);
    if (!contents.insert(token.content).second) {
      return InvalidArgument("added_tokens: two of them are \"", token.content,
                             "\" after normalization");
    }
    normalized.push_back(std::move(token));
  }
  return normalized;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Build(TokenizerSpec spec) {
  std::vector<Token> tokens(spec.vocab.size());
  absl::flat_hash_map<std::string, int32_t> token_ids, ids_by_bytes;
  token_ids.reserve(spec.vocab.size());
  ids_by_bytes.reserve(spec.vocab.size());
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    const std::string& spelling = spec.vocab[id];
    if (spelling.empty()) continue;
    auto bytes = ByteLevelDecode(spelling);
    if (bytes) ids_by_bytes.emplace(*bytes, static_cast<int32_t>(id));
    // As in the ByteLevel decoder, a token outside of the alphabet stands for its own UTF-8.
    tokens[id] = {spelling, bytes ? *std::move(bytes) : spelling, false};
    token_ids.emplace(spelling, static_cast<int32_t>(id));
  }
  spec.vocab = {};
  TAOPD_ASSIGN_OR_RETURN(const auto byte_ids, ByteIds(ids_by_bytes, spec.handles_unknown_bytes));

  std::vector<AddedToken> raw_added;
  for (const AddedToken& token : spec.added_tokens) {
    if (token.id >= static_cast<int64_t>(tokens.size())) tokens.resize(token.id + 1);
    Token& entry = tokens[token.id];
    if (!entry.spelling.empty() && entry.spelling != token.content) {
      return InvalidArgument("added_tokens: id ", token.id, " of \"", token.content, "\" is \"",
                             entry.spelling, "\" in the vocab");
    }
    // As in HF tokenizers, the token is found by its content in the file and spelled as its text.
    const std::string spelling =
        token.normalized && spec.normalize_nfc ? NormalizeNfc(token.content) : token.content;
    entry = {spelling, ByteLevelDecode(spelling).value_or(spelling), token.special};
    token_ids[token.content] = token.id;
    if (!token.normalized) raw_added.push_back(token);
  }
  TAOPD_ASSIGN_OR_RETURN(auto normalized_added, NormalizedAddedTokens(spec));
  for (const auto* ids : {&spec.prefix_ids, &spec.suffix_ids}) {
    for (const int32_t id : *ids) {
      if (id >= static_cast<int64_t>(tokens.size())) {
        return InvalidArgument("post_processor: id ", id, " is not in the vocabulary of ",
                               tokens.size());
      }
    }
  }
  if (!spec.ignore_merges) ids_by_bytes.clear();
  auto bpe = std::make_unique<Bpe>(spec.merges, byte_ids, std::move(ids_by_bytes));
  return std::make_unique<ByteLevelBpeTokenizer>(std::move(spec), std::move(tokens),
                                                 std::move(token_ids), std::move(bpe),
                                                 std::move(raw_added), std::move(normalized_added));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& model_dir) {
  const std::string path = model_dir + "/tokenizer.json";
  TAOPD_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(path, kMaxTokenizerJsonBytes));
  return Parse(text, path);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(const std::string& tokenizer_json,
                                                            const std::string& source) {
  TAOPD_ASSIGN_OR_RETURN(TokenizerSpec spec, ParseTokenizerJson(tokenizer_json, source));
  return Build(std::move(spec));
}

}  // namespace taopd
