#include "kernels/cpu/layers/layer_loops.h"

namespace taopd::cpu {

TAOPD_DECLARE_ISA_TABLES(LayerLoops, kFloat32Loops)
TAOPD_DECLARE_ISA_TABLES(LayerLoops, kBfloat16Loops)

const LayerLoops& LayerLoopsOf(InstructionSet set, DataType type) {
  return type == DataType::kFloat32 ? TAOPD_ISA_TABLE(set, kFloat32Loops)
                                    : TAOPD_ISA_TABLE(set, kBfloat16Loops);
}

const LayerLoops& BestLayerLoops(DataType type) {
  static const InstructionSet best = WidestInstructionSet();
  return LayerLoopsOf(best, type);
}

}  // namespace taopd::cpu
