// Fuzz entry: a response and an answer, parted by the first zero byte, for every grader.
#include <memory>
#include <vector>

#include "common/base/check.h"
#include "trainer/grading/grader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::unique_ptr<taopd::grading::Grader>> graders = [] {
    std::vector<std::unique_ptr<taopd::grading::Grader>> made;
    for (const std::string& name : taopd::grading::GraderNames()) {
      auto grader = taopd::grading::Grader::Make(name, "");
      if (grader.ok()) made.push_back(*std::move(grader));
    }
    return made;
  }();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view response = input.substr(0, zero);
  const std::string_view answer =
      zero == std::string_view::npos ? response : input.substr(zero + 1);
  for (const auto& grader : graders) {
    TAOPD_CHECK(!grader->Grade(response, answer).reason.empty());
  }
  return 0;
}
