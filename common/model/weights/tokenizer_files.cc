#include "common/model/weights/tokenizer_files.h"

#include "common/io/file.h"

namespace taopd {
namespace {

constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "tokenizer.model",
                                           "special_tokens_map.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "added_tokens.json",
                                           "chat_template.jinja",
                                           "vocab.txt",
                                           "chat_template.json",
                                           "generation_config.json"};

}  // namespace

absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& model_dir) {
  TokenizerFiles files;
  for (const char* name : kTokenizerFiles) {
    const std::string path = model_dir + "/" + name;
    if (!FileExists(path)) continue;
    TAOPD_ASSIGN_OR_RETURN(files[name], ReadFileToString(path));
  }
  return files;
}

absl::Status WriteTokenizerFiles(const TokenizerFiles& files, const std::string& model_dir) {
  TAOPD_RETURN_IF_ERROR(MakeDirectories(model_dir));
  for (const auto& [name, content] : files) {
    TAOPD_RETURN_IF_ERROR(WriteFileAtomically(model_dir + "/" + name, content));
  }
  return absl::OkStatus();
}

}  // namespace taopd
