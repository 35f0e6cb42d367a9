// The fuzz entry of the safetensors header on damaged headers.
#include <gtest/gtest.h>

#include "tests/support/mutation.h"

namespace taopd::testing {
namespace {

TEST(SafetensorsHeader, SurvivesDamage) {
  RunMutations(
      {R"({"a":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]},)"
       R"("b":{"dtype":"BF16","shape":[16],"data_offsets":[32,64]}})",
       R"({"__metadata__":{"format":"pt"},"x":{"dtype":"U8","shape":[64],"data_offsets":[0,64]}})",
       R"({"e":{"dtype":"F64","shape":[0,3],"data_offsets":[0,0]},)"
       R"("f":{"dtype":"I64","shape":[8,1],"data_offsets":[0,64]}})"},
      20000, 1);
}

}  // namespace
}  // namespace taopd::testing
