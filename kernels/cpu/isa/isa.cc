#include "kernels/cpu/isa/isa.h"

#include <cstdlib>
#include <cstring>
#ifdef __x86_64__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace taopd::cpu {

const char* NameOf(InstructionSet set) {
  constexpr const char* kNames[] = {"base", "avx2", "avx512", "avx512_bf16", "amx_bf16"};
  return kNames[static_cast<int>(set)];
}

#if defined(__x86_64__)

namespace {

// Asks the operating system to permit AMX's tiles, whose state takes 8 KiB per thread. Existing
// threads get the permission as well.
bool AskForTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool IsSupported(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBase:
      return true;
    case InstructionSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case InstructionSet::kAvx512:
      return IsSupported(InstructionSet::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    case InstructionSet::kAvx512Bf16:
      return IsSupported(InstructionSet::kAvx512) && __builtin_cpu_supports("avx512bf16");
    case InstructionSet::kAmxBf16: {
      static const bool has_tiles = IsSupported(InstructionSet::kAvx512Bf16) &&
                                    __builtin_cpu_supports("amx-tile") &&
                                    __builtin_cpu_supports("amx-bf16") && AskForTiles();
      return has_tiles;
    }
  }
  return false;
}

bool MultipliesFloat16() { return __builtin_cpu_supports("avx512fp16") != 0; }

#else

bool IsSupported(InstructionSet set) { return set == InstructionSet::kBase; }
bool MultipliesFloat16() { return false; }

#endif

std::string ProblemOfMaxIsa() {
  const char* const name = std::getenv(kMaxIsaVariable);
  if (name == nullptr) return "";
  std::string known;
  for (InstructionSet set : kAllInstructionSets) {
    if (std::strcmp(name, NameOf(set)) == 0) return "";
    known += std::string(known.empty() ? "" : ", ") + NameOf(set);
  }
  return std::string(kMaxIsaVariable) + " is \"" + name + "\", must be one of " + known;
}

InstructionSet WidestInstructionSet() {
  static const InstructionSet widest = [] {
    const char* const limit = std::getenv(kMaxIsaVariable);
    InstructionSet found = InstructionSet::kBase;
    for (InstructionSet set : kAllInstructionSets) {
      if (IsSupported(set)) found = set;
      if (limit != nullptr && std::strcmp(limit, NameOf(set)) == 0) break;
    }
    return found;
  }();
  return widest;
}

}  // namespace taopd::cpu
