#include "common/text/tokenizer/tokenizer_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/io/jsonl.h"

namespace taopd {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTemplateFileBytes = int64_t{4} << 20;

// A token is given as its text, or as an object whose content is the text.
absl::StatusOr<std::optional<std::string>> TokenText(const json& value, const std::string& name) {
  if (value.is_null()) return std::nullopt;
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  return InvalidArgument(name, " is neither a string nor an object with a string content");
}

absl::Status ReadTemplates(const json& value, TokenizerConfig* config) {
  if (value.is_null()) return absl::OkStatus();
  if (value.is_string()) {
    config->chat_templates["default"] = value.get<std::string>();
    return absl::OkStatus();
  }
  if (!value.is_array()) return InvalidArgument("chat_template is neither a string nor a list");
  for (const json& entry : value) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
        !entry.contains("template") || !entry["template"].is_string()) {
      return InvalidArgument("chat_template holds an entry that is not {name, template}");
    }
    config->chat_templates[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
  }
  return absl::OkStatus();
}

// The tokens of the file replace those that the configuration has. One of null is then absent.
absl::Status ReadTokens(const json& file, TokenizerConfig* config) {
  if (!file.is_object()) return InvalidArgument("not an object");
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    if (!file.contains(name)) continue;
    TAOPD_ASSIGN_OR_RETURN(auto text, TokenText(file[name], name));
    std::erase_if(config->special_tokens, [&](const auto& token) { return token.first == name; });
    if (text) config->special_tokens.emplace_back(name, *std::move(text));
  }
  return absl::OkStatus();
}

absl::Status ReadConfig(const json& file, TokenizerConfig* config) {
  TAOPD_RETURN_IF_ERROR(ReadTokens(file, config));
  return ReadTemplates(file.value("chat_template", json()), config);
}

absl::Status ReadTemplateFiles(const std::string& model_dir, TokenizerConfig* config) {
  std::map<std::string, std::string> paths;
  const std::string file = model_dir + "/chat_template.jinja";
  if (FileExists(file)) paths["default"] = file;
  const std::string dir = model_dir + "/additional_chat_templates";
  std::error_code ignored;
  if (std::filesystem::is_directory(dir, ignored)) {
    TAOPD_ASSIGN_OR_RETURN(const auto names, ListDirectory(dir));
    for (const std::string& name : names) {
      constexpr std::string_view kSuffix = ".jinja";
      if (!name.ends_with(kSuffix)) continue;
      paths[name.substr(0, name.size() - kSuffix.size())] = Concat(dir, "/", name);
    }
  }
  if (paths.empty()) return absl::OkStatus();
  config->chat_templates.clear();
  for (const auto& [name, path] : paths) {
    absl::StatusOr<std::string> source = ReadFileToString(path, kMaxTemplateFileBytes);
    // The path is a broken link. NOT_FOUND would mean that the model has no template.
    if (absl::IsNotFound(source.status())) return DataLoss(source.status().message());
    TAOPD_RETURN_IF_ERROR(source.status());
    config->chat_templates[name] = *std::move(source);
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<std::string> TokenizerConfig::SpecialToken(const std::string& attribute) const {
  for (const auto& [name, text] : special_tokens) {
    if (name == attribute) return text;
  }
  return std::nullopt;
}

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const std::string& model_dir) {
  TokenizerConfig config;
  const std::string path = model_dir + "/tokenizer_config.json";
  bool has_all_tokens = false;
  if (FileExists(path)) {
    TAOPD_ASSIGN_OR_RETURN(const json file, ReadJsonFile(path));
    TAOPD_RETURN_IF_ERROR(Annotate(ReadConfig(file, &config), path));
    has_all_tokens = file.contains("added_tokens_decoder");
  }
  const std::string map = model_dir + "/special_tokens_map.json";
  if (!has_all_tokens && FileExists(map)) {
    TAOPD_ASSIGN_OR_RETURN(const json file, ReadJsonFile(map));
    TAOPD_RETURN_IF_ERROR(Annotate(ReadTokens(file, &config), map));
  }
  TAOPD_RETURN_IF_ERROR(ReadTemplateFiles(model_dir, &config));
  const std::string legacy = model_dir + "/chat_template.json";
  if (config.chat_templates.empty() && FileExists(legacy)) {
    TAOPD_ASSIGN_OR_RETURN(const json file, ReadJsonFile(legacy));
    if (!file.is_object() || !file.contains("chat_template")) {
      return InvalidArgument(legacy, " has no chat_template");
    }
    TAOPD_RETURN_IF_ERROR(Annotate(ReadTemplates(file["chat_template"], &config), legacy));
  }
  return config;
}

absl::StatusOr<SpecialTokenIds> FindSpecialTokens(const TokenizerConfig& config,
                                                  const Tokenizer& tokenizer) {
  SpecialTokenIds ids;
  const std::pair<const char*, std::optional<int32_t>*> slots[] = {{"bos_token", &ids.bos},
                                                                   {"eos_token", &ids.eos},
                                                                   {"pad_token", &ids.pad},
                                                                   {"unk_token", &ids.unk}};
  for (const auto& [name, slot] : slots) {
    const auto text = config.SpecialToken(name);
    if (!text) continue;
    *slot = tokenizer.TokenToId(*text);
    if (!slot->has_value()) {
      return InvalidArgument(name, " \"", *text, "\" is not in the tokenizer's vocabulary");
    }
  }
  return ids;
}

}  // namespace taopd
