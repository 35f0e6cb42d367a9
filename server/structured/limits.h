// What a grammar may take. Whoever sends one pays with it alone: its process ends at a limit.
#pragma once

#include <cstdint>

namespace taopd {

// Plain data, which travels to taopd-grammar as it is. Times are those of a processor, not of a clock.
struct GrammarLimits {
  int64_t compile_cpu_ms = 5000;
  // Of one mask in the rehearsal of some ids that follows the compilation, and of one in earnest: the
  // engine waits for that, so it bounds for how long one grammar can hold it up, once.
  int64_t rehearsed_mask_cpu_ms = 50;
  int64_t mask_cpu_ms = 250;
  // Address space beyond what the vocabulary takes.
  int64_t memory_bytes = int64_t{512} << 20;
};

// How taopd-grammar is started: this argument, and its end of the socket under this number.
inline constexpr char kGrammarServeFlag[] = "--serve";
inline constexpr int kGrammarServeFd = 3;

}  // namespace taopd
