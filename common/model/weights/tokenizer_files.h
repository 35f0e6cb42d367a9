// The files of a Hugging Face model directory beside its configuration and weights: tokenizer, chat
// template, generation defaults. A model that is trained carries them unchanged into every export.
#pragma once

#include <map>
#include <string>

#include "common/base/status.h"

namespace taopd {

// Contents by file name. Held in memory, so that an export does not depend on the directory that
// the files were read from: a resumed run reads a checkpoint that it later deletes.
using TokenizerFiles = std::map<std::string, std::string>;

// Reads those files of `model_dir` that exist. A file that exists and cannot be read is an error.
absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& model_dir);

// Writes each file atomically into `model_dir`, which is created.
absl::Status WriteTokenizerFiles(const TokenizerFiles& files, const std::string& model_dir);

}  // namespace taopd
