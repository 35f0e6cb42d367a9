#include "kernels/cpu/attention/attention_loops.h"

namespace taopd::cpu {

TAOPD_DECLARE_ISA_TABLES(AttentionLoops, kFloat32Attention)
TAOPD_DECLARE_PAIR_ISA_TABLES(AttentionLoops, kBfloat16Attention)

const AttentionLoops& AttentionLoopsOf(InstructionSet set, DataType type) {
  return type == DataType::kFloat32 ? TAOPD_ISA_TABLE(set, kFloat32Attention)
                                    : TAOPD_PAIR_ISA_TABLE(set, kBfloat16Attention);
}

}  // namespace taopd::cpu
