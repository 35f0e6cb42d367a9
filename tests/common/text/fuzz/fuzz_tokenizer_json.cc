#include <cstddef>
#include <cstdint>

#include "tests/common/text/fuzz/text_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  taopd::testing::FuzzTokenizerJson(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
