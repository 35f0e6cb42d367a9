// The limits of structured output, and how the server starts taopd-grammar.
#pragma once

#include <cstdint>

namespace taopd {

// Plain data, which travels to taopd-grammar as it is. Times are those of a processor, not of a
// clock.
struct GrammarLimits {
  // Of one compilation. The process ends if it takes longer.
  int64_t compile_cpu_ms = 5000;
  // Of one mask in the rehearsal of some ids that follows the compilation.
  int64_t rehearsed_mask_cpu_ms = 50;
  // Of one mask in earnest. The process ends if it takes longer.
  int64_t mask_cpu_ms = 1000;
  // Of all masks of one text: this much, and so much more for each of its tokens. The text fails.
  int64_t text_cpu_ms = 2000;
  int64_t token_cpu_ms = 2;
  // Address space of the process beyond what it takes once it has the vocabulary.
  int64_t memory_bytes = int64_t{1} << 30;
  // A compiled form. It is refused if it takes more.
  int64_t form_bytes = int64_t{128} << 20;
};

// What the memory plan counts for the process: limits.memory_bytes, and the program and a
// vocabulary of 150,000 ids.
inline constexpr int64_t kGrammarProcessBytes = (int64_t{1} << 30) + (int64_t{192} << 20);

// How taopd-grammar is started: with this argument, its end of the socket under the first number,
// and the pipe for its last word under the second.
inline constexpr char kGrammarServeFlag[] = "--serve";
inline constexpr int kGrammarSocketFd = 3;
inline constexpr int kGrammarLastWordFd = 4;

}  // namespace taopd
