#include "kernels/cpu/attention/attention_loops.h"

namespace taopd::cpu {

TAOPD_DECLARE_ISA_TABLES(AttentionLoops, kFloat32Attention)
TAOPD_DECLARE_ISA_TABLES(AttentionLoops, kBfloat16Attention)

#if defined(__x86_64__)
namespace avx512_bf16 {
extern const AttentionLoops kBfloat16Attention;
}
#endif

const AttentionLoops& AttentionLoopsOf(InstructionSet set, DataType type) {
  return type == DataType::kFloat32 ? TAOPD_ISA_TABLE(set, kFloat32Attention)
                                    : TAOPD_ISA_TABLE(set, kBfloat16Attention);
}

const AttentionLoops& Bfloat16PairAttentionLoops() {
#if defined(__x86_64__)
  return avx512_bf16::kBfloat16Attention;
#else
  return base::kBfloat16Attention;
#endif
}

const AttentionLoops& BestAttentionLoops(DataType type) {
  static const InstructionSet best = WidestInstructionSet();
  static const bool pairs = MultipliesBfloat16Pairs();
  return type == DataType::kBFloat16 && pairs ? Bfloat16PairAttentionLoops()
                                              : AttentionLoopsOf(best, type);
}

}  // namespace taopd::cpu
