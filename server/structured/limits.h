// The limits of structured output.
#pragma once

#include <cstdint>

namespace taopd {

// Sent to taopd-grammar as raw bytes. Times are processor time of a thread.
struct GrammarLimits {
  // One compilation. The process ends if it takes longer.
  int64_t compile_cpu_ms = 5000;
  // One mask of the rehearsal, which matches random ids against a new grammar. The grammar is
  // refused if a mask takes longer.
  int64_t rehearsed_mask_cpu_ms = 50;
  // One mask of a text. The process ends if it takes longer.
  int64_t mask_cpu_ms = 1000;
  // All masks of one text: a fixed part, and a part per token. The text fails if they take longer.
  int64_t text_cpu_ms = 2000;
  int64_t token_cpu_ms = 2;
  // Address space of the process, without what it uses when it has read the vocabulary.
  int64_t memory_bytes = int64_t{1} << 30;
  // One compiled grammar. A larger one is refused.
  int64_t compiled_bytes = int64_t{128} << 20;
};

// The process in the memory plan: its address space, the program, and a vocabulary of 150,000 ids.
inline constexpr int64_t kGrammarProcessBytes = GrammarLimits{}.memory_bytes + (int64_t{192} << 20);

}  // namespace taopd
