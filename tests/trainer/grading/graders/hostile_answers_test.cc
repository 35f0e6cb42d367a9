// Hostile answers get the right verdict in bounded time and memory and never cause an exception or
// a crash. A parser that hangs or takes quadratic time needs minutes for these, more than the
// program's time limit.
#include <gtest/gtest.h>

#include "tests/support/mutation.h"
#include "trainer/grading/algebra/expression.h"
#include "trainer/grading/grader.h"
#include "trainer/grading/latex/parser.h"

namespace taopd::grading {
namespace {

using testing::Repeated;

// Grades in both directions with every grader. Returns the names of the graders that accept the
// response.
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
  struct Nesting {
    std::string open, close;
    // The graders that find the 1 inside.
    std::string right;
  };
  const Nesting nestings[] = {
      // The leading digit is a choice.
      {"(", ")", "choice"},
      {"{", "}", "choice"},
      // The innermost fraction, 1/1, can be read alone.
      {"\\frac{1}{", "}", "math auto"},
      // The innermost box.
      {"\\boxed{", "}", "math auto qwen2.5-math choice"},
      {"\\sqrt{", "}", ""},
      {"\\{", "\\}", ""},
      {"[", "]", ""},
      {"|", "|", ""},
      {"x^{", "}", ""},
      {"-", "", ""},
      {"\\sin(", ")", ""},
      {"f(", ")", ""},
  };
  for (const auto& [open, close, right] : nestings) {
    const std::string deep = Repeated(open, 10000) + "1" + Repeated(close, 10000);
    EXPECT_EQ(GradedRight("\\boxed{" + deep + "}", "1"), right) << open;
    // The limit on bytes refuses the first, and the limit on depth the second.
    for (const size_t depth : {10000, 300}) {
      const std::string text = Repeated(open, depth) + "1" + Repeated(close, depth);
      EXPECT_EQ(latex::Parse(text), nullptr) << open << ", " << depth;
      EXPECT_EQ(ParseArithmetic(text), nullptr) << open << ", " << depth;
    }
  }
}

TEST(HostileAnswers, OneMegabyte) {
  constexpr size_t kBytes = size_t{1} << 20;
  for (const char* part : {"1",        "(",       "$x$ ",
                           "\\boxed{", "\\[",     "$",
                           "$$",       "answer ", "final answer is ",
                           "\\frac12", "9,999,",  "{",
                           "\\text{",  "1,",      "\\left(",
                           " [",       "=",       "\\",
                           "\xFF",     "and ",    "\n"}) {
    const std::string text = Repeated(part, kBytes / std::string(part).size());
    EXPECT_EQ(GradedRight(text, "1"), "") << part;
    EXPECT_EQ(GradedRight("$" + text + "$", "1"), "") << part;
  }
  // The last number is a 1.
  const std::string ones = Repeated("1 ", kBytes / 2), sum = Repeated("1+", kBytes / 2);
  EXPECT_EQ(GradedRight(ones, "1"), "math auto qwen2.5-math");
  EXPECT_EQ(GradedRight("$" + ones + "$", "1"), "math auto qwen2.5-math");
  EXPECT_EQ(GradedRight(sum, "1"), "math auto qwen2.5-math");
  EXPECT_EQ(GradedRight("$" + sum + "$", "1"), "qwen2.5-math");
}

TEST(HostileAnswers, HugeNumbers) {
  for (const char* text :
       {"9^{9^{9^{9}}}", "2^{100000000000}", "10^{-99999999}", "1000000!", "99!!!!!",
        "\\binom{1000000}{500000}", "\\sin(10^{1000})", "e^{e^{e^{e^{10}}}}", "5 \\mod 0",
        "\\lfloor 10^{40}\\pi \\rfloor", "\\gcd(0,0)", "(\\infty, -\\infty)"}) {
    const std::string plain = std::string("$") + text + "$";
    EXPECT_EQ(GradedRight(plain, "1"), "") << text;
    EXPECT_EQ(GradedRight(plain, text).substr(0, 9), "math auto") << text << " answers itself";
  }
}

// Answers of at most a few kilobytes whose exact values, or whose elements when they are multiplied
// out, grow with every factor.
TEST(HostileAnswers, GrowingProducts) {
  std::string multiple = "\\lcm(1";
  for (int base = 1001; base < 1600; base += 2) multiple += ", " + std::to_string(base) + "^{1500}";
  const std::string matrix = "\\begin{pmatrix} 1 & 1 \\\\ 1 & 1 \\end{pmatrix}";
  for (const std::string& text :
       {std::string("\\binom{999983^{900}}{400}"), multiple + ")", Repeated(matrix, 60)}) {
    EXPECT_EQ(GradedRight("$" + text + "$", "5"), "") << text.substr(0, 40);
    EXPECT_EQ(GradedRight("$" + text + "$", matrix), "") << text.substr(0, 40);
  }
}

TEST(HostileAnswers, WhatHasNoValueEqualsNoOtherText) {
  for (const char* text : {"0^{-1}", "\\frac{1}{0}", "\\log 0", "\\log_1 2", "\\tan(\\pi/2)",
                           "\\sqrt[0]{2}", "\\begin{vmatrix} 1 & 2 \\end{vmatrix}"}) {
    const std::string plain = std::string("$") + text + "$";
    EXPECT_EQ(GradedRight(plain, "1"), "") << text;
    EXPECT_EQ(GradedRight(plain, text), "math auto") << text << " answers itself as a text";
    EXPECT_EQ(GradedRight(std::string("$") + text + "+0$", text), "") << text;
  }
}

}  // namespace
}  // namespace taopd::grading
