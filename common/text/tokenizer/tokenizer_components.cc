#include "common/text/tokenizer/tokenizer_components.h"

#include <vector>

namespace taopd {
namespace {

using nlohmann::json;

struct Component {
  std::string type;
  const json* value;
};

// Lists the components of a role in order. A Sequence (whose list is named `list_name`) is
// expanded, and null means nothing.
absl::Status Flatten(const json& value, const std::string& role, const std::string& list_name,
                     std::vector<Component>* components) {
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_object()) return InvalidArgument(role, " is not an object");
  TAOPD_ASSIGN_OR_RETURN(const std::string type, StringMember(value, "type"));
  if (type.empty()) return InvalidArgument(role, " has no type");
  if (type != "Sequence") {
    components->push_back({type, &value});
    return absl::OkStatus();
  }
  const auto list = value.find(list_name);
  if (list == value.end() || !list->is_array()) {
    return InvalidArgument(role, ": Sequence has no array ", list_name);
  }
  for (const json& element : *list) {
    TAOPD_RETURN_IF_ERROR(Flatten(element, role, list_name, components));
  }
  return absl::OkStatus();
}

absl::Status Unsupported(const std::string& role, const std::string& type) {
  return Unimplemented(role, " \"", type, "\" is not supported");
}

absl::Status ParseSplit(const json& split, TokenizerSpec* spec) {
  TAOPD_ASSIGN_OR_RETURN(const std::string behavior, StringMember(split, "behavior"));
  if (behavior != "Isolated") {
    return Unimplemented("pre_tokenizer Split: behavior \"", behavior, "\" is not supported");
  }
  TAOPD_ASSIGN_OR_RETURN(const bool invert, BoolMember(split, "invert", false));
  if (invert) return Unimplemented("pre_tokenizer Split: invert is not supported");
  const auto pattern = split.find("pattern");
  if (pattern == split.end() || !pattern->is_object() || pattern->size() != 1) {
    return InvalidArgument("pre_tokenizer Split has no pattern");
  }
  if (!pattern->contains("Regex")) {
    return Unimplemented("pre_tokenizer Split: pattern ", pattern->dump(), " is not supported");
  }
  TAOPD_ASSIGN_OR_RETURN(const std::string regex, StringMember(*pattern, "Regex"));
  const auto known = SplitPatternFromRegex(regex);
  if (!known) {
    return Unimplemented("pre_tokenizer Split: the pattern is not a known one: ", regex);
  }
  spec->split_pattern = *known;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> TemplateTokenIds(const json& tokens, const std::string& name) {
  constexpr char kRole[] = "post_processor TemplateProcessing";
  const auto token = tokens.find(name);
  if (token == tokens.end() || !token->is_object() || !token->contains("ids") ||
      !(*token)["ids"].is_array()) {
    return InvalidArgument(kRole, ": special_tokens gives no ids for \"", name, "\"");
  }
  std::vector<int32_t> ids;
  for (const json& id : (*token)["ids"]) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocabSize)) {
      return InvalidArgument(kRole, ": \"", name, "\": id ", id.dump(), " is not below ",
                             kMaxVocabSize);
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

absl::Status ParseTemplate(const json& component, TokenizerSpec* spec) {
  constexpr char kRole[] = "post_processor TemplateProcessing";
  const auto single = component.find("single");
  const auto tokens = component.find("special_tokens");
  if (single == component.end() || !single->is_array() || tokens == component.end() ||
      !tokens->is_object()) {
    return InvalidArgument(kRole, " has no array single or no object special_tokens");
  }
  int num_sequences = 0;
  for (const json& piece : *single) {
    if (!piece.is_object() || piece.size() != 1 || !piece.begin()->is_object()) {
      return InvalidArgument(kRole, ": piece ", piece.dump(), " is not {kind: {id: name}}");
    }
    const std::string& kind = piece.begin().key();
    TAOPD_ASSIGN_OR_RETURN(const std::string name, StringMember(*piece.begin(), "id"));
    if (kind == "Sequence" && name == "A") {
      ++num_sequences;
    } else if (kind == "SpecialToken") {
      TAOPD_ASSIGN_OR_RETURN(const auto ids, TemplateTokenIds(*tokens, name));
      auto& target = num_sequences == 0 ? spec->prefix_ids : spec->suffix_ids;
      target.insert(target.end(), ids.begin(), ids.end());
    } else {
      return Unimplemented(kRole, ": piece ", piece.dump(), " is not supported");
    }
  }
  if (num_sequences != 1) {
    return Unimplemented(kRole, ": single holds the sequence ", num_sequences, " times, not once");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> BoolMember(const json& object, const std::string& name, bool absent) {
  const auto member = object.find(name);
  if (member == object.end()) return absent;
  if (!member->is_boolean()) {
    return InvalidArgument(name, " is ", member->dump(), ", not true or false");
  }
  return member->get<bool>();
}

absl::StatusOr<std::string> StringMember(const json& object, const std::string& name) {
  const auto member = object.find(name);
  if (member == object.end() || member->is_null()) return std::string();
  if (!member->is_string()) return InvalidArgument(name, " is ", member->dump(), ", not a string");
  return member->get<std::string>();
}

absl::Status ParseNormalizer(const json& value, TokenizerSpec* spec) {
  std::vector<Component> components;
  TAOPD_RETURN_IF_ERROR(Flatten(value, "normalizer", "normalizers", &components));
  for (const Component& component : components) {
    if (component.type != "NFC") return Unsupported("normalizer", component.type);
    spec->normalize_nfc = true;
  }
  return absl::OkStatus();
}

absl::Status ParsePreTokenizer(const json& value, TokenizerSpec* spec) {
  constexpr char kRole[] = "pre_tokenizer";
  std::vector<Component> components;
  TAOPD_RETURN_IF_ERROR(Flatten(value, kRole, "pretokenizers", &components));
  for (const Component& component : components) {
    if (component.type != "Split" && component.type != "ByteLevel") {
      return Unsupported(kRole, component.type);
    }
  }
  if (components.empty() || components.back().type != "ByteLevel") {
    return Unimplemented("pre_tokenizer without a ByteLevel at its end is not supported");
  }
  const json& byte_level = *components.back().value;
  TAOPD_ASSIGN_OR_RETURN(const bool use_regex, BoolMember(byte_level, "use_regex", true));
  TAOPD_ASSIGN_OR_RETURN(spec->add_prefix_space, BoolMember(byte_level, "add_prefix_space", true));
  if (components.size() == 1) {
    if (!use_regex) return Unimplemented("pre_tokenizer ByteLevel without a pattern");
    spec->split_pattern = SplitPattern::kGpt2;
    return absl::OkStatus();
  }
  if (components.size() != 2 || components[0].type != "Split" || use_regex) {
    return Unimplemented(
        "pre_tokenizer Sequence other than Split, ByteLevel with use_regex false is not supported");
  }
  // HF tokenizers would put a space before every piece of the Split.
  if (spec->add_prefix_space) {
    return Unimplemented("pre_tokenizer: add_prefix_space after a Split is not supported");
  }
  return ParseSplit(*components[0].value, spec);
}

absl::Status ParsePostProcessor(const json& value, TokenizerSpec* spec) {
  std::vector<Component> components;
  TAOPD_RETURN_IF_ERROR(Flatten(value, "post_processor", "processors", &components));
  int num_templates = 0;
  for (const Component& component : components) {
    if (component.type == "ByteLevel") continue;  // changes offsets only
    if (component.type != "TemplateProcessing") {
      return Unsupported("post_processor", component.type);
    }
    if (++num_templates > 1) {
      return Unimplemented("post_processor with two TemplateProcessing is not supported");
    }
    TAOPD_RETURN_IF_ERROR(ParseTemplate(*component.value, spec));
  }
  return absl::OkStatus();
}

absl::Status ParseDecoder(const json& value) {
  std::vector<Component> components;
  TAOPD_RETURN_IF_ERROR(Flatten(value, "decoder", "decoders", &components));
  if (components.size() != 1) {
    return Unimplemented("decoder of ", components.size(), " parts; only ByteLevel is supported");
  }
  if (components[0].type != "ByteLevel") return Unsupported("decoder", components[0].type);
  return absl::OkStatus();
}

}  // namespace taopd
