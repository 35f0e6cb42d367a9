// Answers that are meant to hurt: a verdict in bounded time and memory, never an exception or a
// crash.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "trainer/grading/grader.h"
#include "trainer/grading/latex/parser.h"

namespace taopd {
namespace {

std::string Repeated(const std::string& part, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += part;
  return text;
}

// A stuck or quadratic reading takes minutes on these; the longest takes under a second alone.
constexpr auto kTimeLimit = std::chrono::seconds(20);

void GradeByAll(const std::string& response, const std::string& answer) {
  for (const GraderInfo& info : AllGraders()) {
    const auto begin = std::chrono::steady_clock::now();
    auto grader = Grader::Make(info.name, "");
    ASSERT_TRUE(grader.ok());
    (*grader)->Grade(response, answer);
    (*grader)->Grade(answer, response);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kTimeLimit)
        << info.name << " on " << response.substr(0, 40) << " (" << response.size() << " bytes)";
  }
}

TEST(HostileAnswers, Nested10000Deep) {
  for (const auto& [open, close] : {std::pair<std::string, std::string>{"(", ")"},
                                    {"{", "}"},
                                    {"\\frac{1}{", "}"},
                                    {"\\sqrt{", "}"},
                                    {"\\{", "\\}"},
                                    {"[", "]"},
                                    {"|", "|"},
                                    {"x^{", "}"},
                                    {"-", ""},
                                    {"\\boxed{", "}"},
                                    {"\\sin(", ")"},
                                    {"f(", ")"}}) {
    const std::string deep = Repeated(open, 10000) + "1" + Repeated(close, 10000);
    GradeByAll("\\boxed{" + deep + "}", "1");
    EXPECT_EQ(ParseLatex(deep), nullptr) << open;
    ParseArithmetic(deep);
  }
}

TEST(HostileAnswers, OneMegabyte) {
  constexpr size_t kBytes = size_t{1} << 20;
  for (const char* part : {"1",        "(",       "1+",     "$x$ ",    "\\boxed{",
                           "\\[",      "$",       "$$",     "answer ", "final answer is ",
                           "\\frac12", "1 ",      "9,999,", "{",       "\\text{",
                           "1,",       "\\left(", " [",     "=",       "\\",
                           "\xFF",     "and ",    "\n"}) {
    const std::string text = Repeated(part, kBytes / std::string(part).size());
    GradeByAll(text, "1");
    GradeByAll("$" + text + "$", "1");
  }
}

TEST(HostileAnswers, HugeNumbers) {
  for (const char* text : {"9^{9^{9^{9}}}",
                           "2^{100000000000}",
                           "1E999999999",
                           "10^{-99999999}",
                           "1000000!",
                           "99!!!!!",
                           "\\binom{1000000}{500000}",
                           "\\sin(10^{1000})",
                           "e^{e^{e^{e^{10}}}}",
                           "0^{-1}",
                           "\\frac{1}{0}",
                           "\\log 0",
                           "\\log_1 2",
                           "\\tan(\\pi/2)",
                           "\\sqrt[0]{2}",
                           "5 \\mod 0",
                           "\\lfloor 10^{40}\\pi \\rfloor",
                           "\\begin{vmatrix} 1 & 2 \\end{vmatrix}",
                           "\\gcd(0,0)",
                           "\\max(1)",
                           "(\\infty, -\\infty)"}) {
    GradeByAll(std::string("$") + text + "$", "1");
    GradeByAll(std::string("$") + text + "$", text);
    GradeByAll(std::string("$") + text + "+0$", text);
  }
}

// Random edits of answers of every kind; the seed is fixed.
TEST(HostileAnswers, Mutations) {
  const std::vector<std::string> seeds = {
      "\\frac{9}{4}\\pi",
      "(-\\infty, 3] \\cup [5, 8)",
      "\\begin{pmatrix} 1 & -2 \\\\ 0 & \\frac12 \\end{pmatrix}",
      "x = 5 \\pm \\sqrt{19}",
      "1,234,567.5",
      "\\{1, 2, 3\\}",
      "90^\\circ",
      "12.5\\%",
      "f(x)=x^2+3x-\\log_{2}(x)",
      "\\text{Evelyn and Bob}",
      "3 < x \\leq 7",
      "\\binom{5}{2}!",
      "\\sin^2 x + \\cos^{-1} y",
      "4210_{5}",
      "2\\frac{1}{3}"};
  static constexpr const char* kPieces[] = {
      "{",    "}",      "(",  ")", "\\frac", "^",       "_", "$",       "\\boxed{",
      ",",    "|",      "\\", "9", "=",      "\\sqrt",  "-", "\\text{", "&",
      "\\\\", "\\left", "E",  "%", " and ",  "\\infty", "!"};
  std::mt19937 random(20240611);
  auto grader = Grader::Make("math", "");
  ASSERT_TRUE(grader.ok());
  for (int round = 0; round < 4000; ++round) {
    const std::string& original = seeds[random() % seeds.size()];
    std::string text = original;
    for (unsigned edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % (text.size() + 1);
      switch (random() % 3) {
        case 0:
          text.insert(at, kPieces[random() % std::size(kPieces)]);
          break;
        case 1:
          text.erase(at, random() % 4);
          break;
        default:
          text.insert(at, 1, static_cast<char>(random()));
      }
    }
    (*grader)->Grade("so \\boxed{" + text + "}", original);
    (*grader)->Grade("$" + text + "$", text);
  }
}

}  // namespace
}  // namespace taopd
