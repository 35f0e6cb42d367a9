// libFuzzer target: a response and an answer, parted by the first zero byte.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "trainer/grading/math_grader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view response = input.substr(0, zero);
  taopd::GradeMath(response, zero == std::string_view::npos ? response : input.substr(zero + 1));
  return 0;
}
