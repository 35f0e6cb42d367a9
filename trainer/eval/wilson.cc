#include "trainer/eval/grader.h"

#include <re2/re2.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace taopd {
namespace {

std::string Trim(const std::string& text) {
  const char* spaces = " \t\r\n";
  const size_t begin = text.find_first_not_of(spaces);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(spaces) - begin + 1);
}

std::optional<double> ParseNumber(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ','), text.end());
  if (!text.empty() && text[0] == '+') text.erase(0, 1);
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

class PatternGrader final : public Grader {
 public:
  PatternGrader(bool numeric, std::unique_ptr<RE2> pattern) : numeric_(numeric), pattern_(std::move(pattern)) {}

  Verdict Grade(const std::string& response, const std::string& answer) const override {
    Verdict verdict;
    if (pattern_ == nullptr) {
      verdict.extracted = Trim(response);
    } else if (std::string found; RE2::PartialMatch(response, *pattern_, &found)) {
      verdict.extracted = Trim(found);
    } else {
      return verdict;
    }
    const std::string wanted = Trim(answer);
    if (numeric_) {
      const auto left = ParseNumber(verdict.extracted);
      const auto right = ParseNumber(wanted);
      verdict.correct = left && right && std::isfinite(*left) && *left == *right;
    } else {
      verdict.correct = verdict.extracted == wanted;
    }
    return verdict;
  }

 private:
  const bool numeric_;
  const std::unique_ptr<RE2> pattern_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Grader>> Grader::Make(const std::string& kind, const std::string& answer_pattern) {
  if (kind != "exact" && kind != "numeric") return InvalidArgument("grader \"", kind, "\" is neither exact nor numeric");
  std::unique_ptr<RE2> pattern;
  if (!answer_pattern.empty()) {
    pattern = std::make_unique<RE2>(answer_pattern, RE2::Quiet);
    if (!pattern->ok()) return InvalidArgument("answer_pattern \"", answer_pattern, "\": ", pattern->error());
    if (pattern->NumberOfCapturingGroups() < 1) {
      return InvalidArgument("answer_pattern \"", answer_pattern, "\" has no group for the answer");
    }
  }
  return std::make_unique<PatternGrader>(kind == "numeric", std::move(pattern));
}

Interval WilsonInterval(double successes, double trials) {
  if (trials <= 0) return {};
  constexpr double kZ = 1.959963984540054;  // 97.5 % point of the standard normal
  const double p = successes / trials;
  const double z2 = kZ * kZ;
  const double center = (p + z2 / (2 * trials)) / (1 + z2 / trials);
  const double half = kZ / (1 + z2 / trials) * std::sqrt(p * (1 - p) / trials + z2 / (4 * trials * trials));
  return {std::max(0.0, center - half), std::min(1.0, center + half)};
}

}  // namespace taopd
