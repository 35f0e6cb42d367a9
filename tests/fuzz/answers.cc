// Fuzz entry: a response and an answer, parted by the first zero byte, for every grader. No
// arithmetic fails, and a text in which an answer can be found matches itself.
#include <memory>
#include <vector>

#include "common/base/check.h"
#include "common/base/status.h"
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
  static const auto* const math = taopd::grading::Grader::Make("math", "")->release();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view response = input.substr(0, zero);
  const std::string_view answer =
      zero == std::string_view::npos ? response : input.substr(zero + 1);
  for (const auto& grader : graders) {
    const std::string reason = grader->Grade(response, answer).reason;
    TAOPD_CHECK(!reason.empty());
    TAOPD_CHECK(reason.find("arithmetic failed") == std::string::npos);
  }
  const taopd::grading::Verdict same = math->Grade(taopd::Concat("$", answer, "$"), answer);
  TAOPD_CHECK(same.correct || same.extracted.empty());
  return 0;
}
