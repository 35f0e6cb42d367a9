// Answers that are meant to hurt: a verdict in bounded time and memory, never an exception or a
// crash.
#include <gtest/gtest.h>

#include <random>

#include "trainer/grading/algebra/arithmetic_parser.h"
#include "trainer/grading/grader.h"
#include "trainer/grading/latex/parser.h"

namespace taopd::grading {
namespace {

std::string Repeated(const std::string& part, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += part;
  return text;
}

// Grades in both directions with every grader. Returns the names of those to which the response is
// right.
std::string GradedRight(const std::string& response, const std::string& answer) {
  std::string right;
  for (const GraderInfo& info : AllGraders()) {
    auto grader = Grader::Make(info.name, "");
    EXPECT_TRUE(grader.ok()) << grader.status();
    const Verdict forth = (*grader)->Grade(response, answer);
    const Verdict back = (*grader)->Grade(answer, response);
    for (const Verdict& verdict : {forth, back}) {
      EXPECT_FALSE(verdict.reason.empty()) << info.name << " on " << response.substr(0, 40);
      EXPECT_EQ(verdict.reason.find("arithmetic failed"), std::string::npos)
          << info.name << " on " << response.substr(0, 40) << ": " << verdict.reason;
    }
    if (forth.correct) right += (right.empty() ? "" : " ") + info.name;
  }
  return right;
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
    std::printf("N %s: %s\n", open.c_str(), GradedRight("\\boxed{" + deep + "}", "1").c_str());
    EXPECT_EQ(latex::Parse(deep), nullptr) << open;
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
    std::printf("M %s: %s | %s\n", part, GradedRight(text, "1").c_str(),
                GradedRight("$" + text + "$", "1").c_str());
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
    const std::string plain = std::string("$") + text + "$";
    std::printf("H %s: %s | %s | %s\n", text, GradedRight(plain, "1").c_str(),
                GradedRight(plain, text).c_str(),
                GradedRight(std::string("$") + text + "+0$", text).c_str());
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
  int num_b = 0, num_empty = 0;
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
    const Verdict b = (*grader)->Grade("so \\boxed{" + text + "}", original);
    const Verdict c = (*grader)->Grade("$" + text + "$", text);
    EXPECT_TRUE(c.correct || c.extracted.empty()) << text << ": " << c.reason;
    EXPECT_EQ(b.reason.find("arithmetic failed"), std::string::npos) << text;
    num_b += b.correct;
    num_empty += c.extracted.empty();
  }
  std::printf("right %d, empty %d\n", num_b, num_empty);
}

}  // namespace
}  // namespace taopd::grading
