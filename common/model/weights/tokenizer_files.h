// The files of a Hugging Face model directory besides its configuration and weights: tokenizer,
// chat template, generation defaults. Training copies them unchanged into every export.
#pragma once

#include <map>
#include <string>

#include "common/base/status.h"

namespace taopd {

// File contents by file name. They are held in memory, so that an export does not depend on the
// directory that the files were read from: a resumed run reads a checkpoint that it later deletes.
using TokenizerFiles = std::map<std::string, std::string>;

// Reads the files that exist in `model_dir`. A file that exists but cannot be read is an error.
absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& model_dir);

// Writes each file atomically into `model_dir`, which it creates if necessary.
absl::Status WriteTokenizerFiles(const TokenizerFiles& files, const std::string& model_dir);

}  // namespace taopd
