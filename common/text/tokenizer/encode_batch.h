// Many texts at once, on several threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/text/tokenizer/tokenizer.h"

namespace taopd {

// Tokenizer::Encode of each text, in order. num_threads 0: one for each processor core.
std::vector<std::vector<int32_t>> EncodeBatch(const Tokenizer& tokenizer,
                                              std::span<const std::string> texts,
                                              bool add_special_tokens, int num_threads = 0);

}  // namespace taopd
