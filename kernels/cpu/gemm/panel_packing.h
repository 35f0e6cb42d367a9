// The loops over weights that pack panels (packed_gemm.h, coded_panel.h): each update of a model
// packs all of its matrices again.
//
// One source (panel_packing_isa.h) is compiled for several instruction sets; all write the same
// bytes. No alignment is required. The functions keep no state; any thread may call them.
#pragma once

#include <cstdint>

#include "kernels/cpu/gemm/panel_gemm.h"
#include "taopd/base/always_inline.h"

namespace taopd::cpu {

struct PanelPacking {
  // Transposes 32-bit words: word n of step k, at words + (k * 64 + n) * 4, is word k of row n, for
  // n < num_rows <= 64. Other words are not written.
  void (*transpose_words)(const char* rows, int64_t row_bytes, int64_t num_rows, int64_t num_words,
                          char* words);
  // Codes steps of a panel (coded_panel.h) until one has a number whose high byte is not among the
  // kHighBytes distinct ones. Returns how many steps were coded, including that one, and sets
  // *exception to whether there was one. Such a number's code is 15.
  int64_t (*encode_steps)(const Bfloat16Bits* panel, int64_t num_steps, const uint8_t* high_bytes,
                          uint8_t* steps, bool* exception);
};

TAOPD_DECLARE_ISA_TABLES(PanelPacking, kPanelPacking)

// Returns the table of one instruction set. REQUIRES: IsSupported(set).
TAOPD_ALWAYS_INLINE const PanelPacking& PanelPackingOf(InstructionSet set) {
  return TAOPD_ISA_TABLE(set, kPanelPacking);
}
// Returns the table of the widest instruction set.
TAOPD_ALWAYS_INLINE const PanelPacking& BestPanelPacking() {
  return PanelPackingOf(WidestInstructionSet());
}

}  // namespace taopd::cpu
