// The data of supervised training: rows with the responses that are learned. The commands sft and
// data share this code.
#pragma once

#include <string>

#include "common/model/config/model_config.h"
#include "common/text/tokenizer/tokenizer.h"
#include "trainer/config/sft_config.h"
#include "trainer/data/prompt_dataset.h"

namespace taopd {

struct SftData {
  PromptDataset train;
  PromptDataset val;  // without records if data.val is empty
};

// Loads data.train and data.val for `model`, with the tokenizer and the chat template of
// `tokenizer_dir`, which is empty for a model without a tokenizer; `tokenizer` is null then. The
// failure is BadUsage or BadData, and names a setting or a row.
absl::StatusOr<SftData> LoadSftData(const SftDataConfig& data, const ModelConfig& model,
                                    const std::string& tokenizer_dir, const Tokenizer* tokenizer);

}  // namespace taopd
