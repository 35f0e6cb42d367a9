#include "common/text/tokenizer/tokenizer_json.h"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "common/io/jsonl.h"
#include "common/text/tokenizer/tokenizer_components.h"

namespace taopd {
namespace {

using nlohmann::json;
using TokenIds = absl::flat_hash_map<std::string, int32_t>;

absl::Status RefuseUnknownKeys(const json& object, const std::set<std::string_view>& known,
                               const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (!known.contains(key) && !value.is_null()) {
      return Unimplemented(where, "\"", key, "\" is not supported");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckModelOptions(const json& model, TokenizerSpec* spec) {
  TAOPD_RETURN_IF_ERROR(RefuseUnknownKeys(
      model,
      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
      "model: "));
  // Old files have no type.
  TAOPD_ASSIGN_OR_RETURN(const std::string type, StringMember(model, "type"));
  if (!type.empty() && type != "BPE") return Unimplemented("model \"", type, "\" is not supported");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    TAOPD_ASSIGN_OR_RETURN(const std::string affix, StringMember(model, name));
    if (!affix.empty()) return Unimplemented("model: ", name, " \"", affix, "\" is not supported");
  }
  if (const auto dropout = model.find("dropout"); dropout != model.end() && !dropout->is_null()) {
    if (!dropout->is_number() || dropout->get<double>() != 0) {
      return Unimplemented("model: dropout ", dropout->dump(), " is not supported");
    }
  }
  TAOPD_ASSIGN_OR_RETURN(spec->ignore_merges, BoolMember(model, "ignore_merges", false));
  TAOPD_ASSIGN_OR_RETURN(const bool byte_fallback, BoolMember(model, "byte_fallback", false));
  TAOPD_RETURN_IF_ERROR(BoolMember(model, "fuse_unk", false).status());
  TAOPD_ASSIGN_OR_RETURN(const std::string unk_token, StringMember(model, "unk_token"));
  spec->handles_unknown_bytes = byte_fallback || !unk_token.empty();
  return absl::OkStatus();
}

absl::Status ParseVocab(const json& model, TokenizerSpec* spec, TokenIds* token_ids) {
  const auto vocab = model.find("vocab");
  if (vocab == model.end() || !vocab->is_object()) return InvalidArgument("model has no vocab");
  const int64_t num_entries = static_cast<int64_t>(vocab->size());
  if (num_entries == 0 || num_entries > kMaxVocabSize) {
    return InvalidArgument("model: vocab of ", num_entries, " tokens; it must have 1 to ",
                           kMaxVocabSize);
  }
  spec->num_vocab_entries = num_entries;
  spec->vocab.reserve(num_entries);
  token_ids->reserve(num_entries);
  for (const auto& [token, value] : vocab->items()) {
    if (token.empty()) return InvalidArgument("model: vocab holds an empty token");
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= uint64_t{kMaxVocabSize}) {
      return InvalidArgument("model: vocab: id ", value.dump(), " of \"", token,
                             "\" is not an integer from 0 to ", kMaxVocabSize - 1);
    }
    const auto id = value.get<int32_t>();
    if (id >= static_cast<int64_t>(spec->vocab.size())) spec->vocab.resize(id + 1);
    if (!spec->vocab[id].empty()) {
      return InvalidArgument("model: vocab: id ", id, " is both \"", spec->vocab[id], "\" and \"",
                             token, "\"");
    }
    spec->vocab[id] = token;
    token_ids->emplace(token, id);
  }
  return absl::OkStatus();
}

// A merge is written as "a b" or ["a", "b"].
absl::StatusOr<std::pair<std::string, std::string>> ParseMerge(const json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return InvalidArgument("is ", merge.dump(), ", not \"a b\" or [\"a\", \"b\"]");
}

absl::Status ParseMerges(const json& model, const TokenIds& token_ids, TokenizerSpec* spec) {
  const auto merges = model.find("merges");
  if (merges == model.end() || !merges->is_array()) return InvalidArgument("model has no merges");
  spec->merges.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); ++i) {
    const json& merge = (*merges)[i];
    const std::string where = "model: merges[" + std::to_string(i) + "]";
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto pair = ParseMerge(merge);
    if (!pair.ok()) return InvalidArgument(where, " ", pair.status().message());
    int32_t ids[3];
    int num_found = 0;
    for (const std::string& token : {pair->first, pair->second, pair->first + pair->second}) {
      const auto found = token_ids.find(token);
      if (found == token_ids.end()) {
        return InvalidArgument(where, " needs \"", token, "\", which is not in the vocab");
      }
      ids[num_found++] = found->second;
    }
    spec->merges.push_back({ids[0], ids[1], ids[2]});
  }
  return absl::OkStatus();
}

absl::StatusOr<AddedToken> ParseAddedToken(const json& value) {
  if (!value.is_object()) return InvalidArgument("is not an object");
  AddedToken token;
  TAOPD_ASSIGN_OR_RETURN(token.content, StringMember(value, "content"));
  if (token.content.empty()) return InvalidArgument("has no content");
  const auto id = value.find("id");
  if (id == value.end() || !id->is_number_unsigned() ||
      id->get<uint64_t>() >= uint64_t{kMaxVocabSize}) {
    return InvalidArgument("\"", token.content, "\": id is not an integer from 0 to ",
                           kMaxVocabSize - 1);
  }
  token.id = id->get<int32_t>();
  const std::pair<const char*, bool*> options[] = {{"special", &token.special},
                                                   {"single_word", &token.single_word},
                                                   {"lstrip", &token.lstrip},
                                                   {"rstrip", &token.rstrip},
                                                   {"normalized", &token.normalized}};
  for (const auto& [name, option] : options) {
    TAOPD_ASSIGN_OR_RETURN(*option, BoolMember(value, name, false));
  }
  TAOPD_RETURN_IF_ERROR(RefuseUnknownKeys(
      value, {"id", "content", "special", "single_word", "lstrip", "rstrip", "normalized"},
      "\"" + token.content + "\": "));
  return token;
}

// HF tokenizers does not take the ids from the file: a token of the vocabulary keeps its id, and
// any other token gets the next free id. A file with other ids would be ambiguous.
absl::Status CheckAddedTokenId(const AddedToken& token, const TokenIds& token_ids,
                               int64_t largest_added_id, int64_t num_vocab_entries) {
  const auto found = token_ids.find(token.content);
  const int64_t expected =
      found != token_ids.end() ? found->second : std::max(largest_added_id + 1, num_vocab_entries);
  if (token.id != expected) {
    return InvalidArgument("\"", token.content, "\": id ", token.id,
                           " is not the one that HF tokenizers gives it, ", expected);
  }
  return absl::OkStatus();
}

absl::Status ParseAddedTokens(const json& root, const TokenIds& token_ids, TokenizerSpec* spec) {
  const auto list = root.find("added_tokens");
  if (list == root.end() || list->is_null()) return absl::OkStatus();
  if (!list->is_array()) return InvalidArgument("added_tokens is not an array");
  if (static_cast<int64_t>(list->size()) > kMaxVocabSize) {
    return InvalidArgument("added_tokens: ", list->size(), " exceed the limit of ", kMaxVocabSize);
  }
  std::set<std::string> contents;
  int64_t largest_id = -1;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = "added_tokens[" + std::to_string(i) + "]";
    TAOPD_ASSIGN_OR_RETURN(AddedToken token, Annotate(ParseAddedToken((*list)[i]), where));
    if (!contents.insert(token.content).second) {
      return InvalidArgument(where, ": \"", token.content, "\" occurs twice");
    }
    TAOPD_RETURN_IF_ERROR(
        Annotate(CheckAddedTokenId(token, token_ids, largest_id, spec->num_vocab_entries), where));
    largest_id = std::max<int64_t>(largest_id, token.id);
    spec->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenizerSpec> ParseRoot(const json& root) {
  if (!root.is_object()) return InvalidArgument("not an object");
  // The file's truncation and padding are ignored, because they are up to the caller. transformers
  // turns both off unless a call requests them.
  TAOPD_RETURN_IF_ERROR(
      RefuseUnknownKeys(root,
                        {"version", "truncation", "padding", "added_tokens", "normalizer",
                         "pre_tokenizer", "post_processor", "decoder", "model"},
                        ""));
  const auto model = root.find("model");
  if (model == root.end() || !model->is_object()) {
    return InvalidArgument("no object model");
  }
  TokenizerSpec spec;
  TokenIds token_ids;
  TAOPD_RETURN_IF_ERROR(CheckModelOptions(*model, &spec));
  TAOPD_RETURN_IF_ERROR(ParseVocab(*model, &spec, &token_ids));
  TAOPD_RETURN_IF_ERROR(ParseMerges(*model, token_ids, &spec));
  TAOPD_RETURN_IF_ERROR(ParseAddedTokens(root, token_ids, &spec));
  const json null;
  auto component = [&](const char* name) -> const json& {
    return root.contains(name) ? root[name] : null;
  };
  TAOPD_RETURN_IF_ERROR(ParseNormalizer(component("normalizer"), &spec));
  TAOPD_RETURN_IF_ERROR(ParsePreTokenizer(component("pre_tokenizer"), &spec));
  TAOPD_RETURN_IF_ERROR(ParsePostProcessor(component("post_processor"), &spec));
  TAOPD_RETURN_IF_ERROR(ParseDecoder(component("decoder")));
  return spec;
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTokenizerJson(const std::string& text,
                                                 const std::string& source) {
  if (static_cast<int64_t>(text.size()) > kMaxTokenizerJsonBytes) {
    return ResourceExhausted(source, " of ", text.size(), " bytes exceeds the limit of ",
                             kMaxTokenizerJsonBytes);
  }
  TAOPD_ASSIGN_OR_RETURN(const json root, ParseJson(text, source));
  return Annotate(ParseRoot(root), source);
}

}  // namespace taopd
