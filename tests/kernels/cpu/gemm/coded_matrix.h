// Successive panels in coded form, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cpu/gemm/coded_panel.h"

namespace taopd::cpu {

struct CodedMatrix {
  // Codes num_panels plain panels of equal length, each of which must be suitable for coding.
  CodedMatrix(const std::vector<Bfloat16Bits>& plain, int64_t num_panels)
      : tables(static_cast<size_t>(num_panels)) {
    const int64_t elements = static_cast<int64_t>(plain.size()) / num_panels;
    const int64_t num_steps = elements / kStepNumbers;
    steps.resize(static_cast<size_t>(num_panels * num_steps * kCodedStepBytes));
    for (int64_t i = 0; i < num_panels; ++i) {
      uint8_t* const to = steps.data() + i * num_steps * kCodedStepBytes;
      CodedPanelTables& table = tables[static_cast<size_t>(i)];
      EXPECT_TRUE(EncodePanel(plain.data() + i * elements, num_steps, to, &table)) << "panel " << i;
      panels.push_back({to, table.high_bytes, table.exceptions.data()});
    }
  }

  std::vector<uint8_t> steps;
  std::vector<CodedPanelTables> tables;
  std::vector<CodedPanel> panels;
};

}  // namespace taopd::cpu
