// What a grammar may take. Whoever sends one pays with it alone: its process ends at a limit.
#pragma once

#include <cstdint>

namespace taopd {

// Time of a processor, not of a clock.
inline constexpr int64_t kMaxCompileCpuMs = 5000;
// Of one mask in earnest. The engine waits for it, so it bounds what one grammar can hold it up, once.
inline constexpr int64_t kMaxMaskCpuMs = 250;
// Of one mask in the rehearsal that follows the compilation.
inline constexpr double kMaxRehearsedMaskMs = 50.0;
inline constexpr int kRehearsedIds = 64;
// Address space beyond what the vocabulary takes.
inline constexpr int64_t kMaxGrammarMemoryBytes = int64_t{512} << 20;

// How taopd-grammar is started: this argument, and its end of the socket under this number.
inline constexpr char kGrammarServeFlag[] = "--serve";
inline constexpr int kGrammarServeFd = 3;

}  // namespace taopd
