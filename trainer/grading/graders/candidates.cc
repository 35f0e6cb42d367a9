#include "trainer/grading/graders/candidates.h"

#include <algorithm>
#include <optional>

#include "trainer/grading/graders/plain_number.h"
#include "trainer/grading/latex/environment.h"
#include "trainer/grading/text.h"

namespace taopd::grading {
namespace {

// Returns the position after the UTF-8 character at i.
size_t NextCharacter(std::string_view text, size_t i) {
  ++i;
  while (i < text.size() && ContinuesCharacter(text[i])) ++i;
  return i;
}

class GroupScan {
 public:
  GroupScan(std::string_view text, std::string_view lower)
      : text_(text), lower_(lower), environments_(text) {}

  std::vector<Candidate> Find(int priority) {
    if (priority <= 50) {
      const bool hope = priority == 0;
      Anchored("final answer", [&](size_t i) {
        return hope ? FinalAnswerIs(i, true) : FinalAnswerJustIs(i, true);
      });
      Anchored("final answer", [&](size_t i) {
        return hope ? FinalAnswerIs(i, false) : FinalAnswerJustIs(i, false);
      });
      if (!hope) Boxed();
    } else if (priority < 300) {
      const std::string_view anchor = priority == 100 ? "answer:" : "answer";
      Anchored(anchor, [&](size_t i) { return LatexAfter(i + anchor.size()); });
      Anchored(anchor, [&](size_t i) { return NumberAfter(i + anchor.size()); });
    } else {
      Everywhere([&](size_t i) { return Latex(i); });
      Everywhere([&](size_t i) { return MatchPlainExpression(text_, i, false); });
      Everywhere([&](size_t i) { return MatchPlainNumber(text_, i, false); });
    }
    // The rightmost end comes first, then the longest match. Ties keep the order of the patterns.
    std::stable_sort(found_.begin(), found_.end(), [](const Candidate& a, const Candidate& b) {
      return a.end != b.end ? a.end > b.end : a.begin < b.begin;
    });
    return std::move(found_);
  }

 private:
  template <typename Match>
  void Everywhere(const Match& match) {
    for (size_t i = 0; i < text_.size();) {
      std::optional<Candidate> candidate = match(i);
      i = candidate ? std::max(candidate->end, i + 1) : i + 1;
      if (candidate) found_.push_back(*std::move(candidate));
    }
  }

  template <typename Match>
  void Anchored(std::string_view anchor, const Match& match) {
    for (size_t i = lower_.find(anchor); i != kNone;) {
      std::optional<Candidate> candidate = match(i);
      size_t next = i + 1;
      if (candidate) {
        candidate->begin = i;
        next = std::max(candidate->end, next);
        found_.push_back(*std::move(candidate));
      }
      i = lower_.find(anchor, next);
    }
  }

  std::optional<Candidate> Latex(size_t i) {
    auto match = environments_.MatchAt(i);
    if (!match) return std::nullopt;
    Candidate candidate;
    candidate.begin = i;
    candidate.end = match->end;
    candidate.pieces = std::move(match->pieces);
    return candidate;
  }

  std::optional<Candidate> Plain(size_t i, bool no_equals_after) const {
    if (auto candidate = MatchPlainExpression(text_, i, no_equals_after)) return candidate;
    return MatchPlainNumber(text_, i, no_equals_after);
  }

  // Matches the value after "is" or "is:", possibly after spaces. A plain number includes one of
  // the spaces.
  std::optional<Candidate> Value(size_t i, bool latex, bool spaces_allowed) {
    const size_t end = spaces_allowed ? SkipSpaces(text_, i) : i;
    if (latex) {
      auto candidate = Latex(end);
      if (!candidate && end > i) candidate = Latex(end - 1);
      return candidate;
    }
    for (size_t k = end + 1; k-- > (end > i ? end - 1 : i);) {
      if (auto candidate = Plain(k, false)) return candidate;
    }
    return std::nullopt;
  }

  std::optional<Candidate> FinalAnswerIs(size_t i, bool latex) {
    constexpr std::string_view kAnchor = "final answer is";
    if (lower_.substr(i, kAnchor.size()) != kAnchor) return std::nullopt;
    i += kAnchor.size();
    if (i < text_.size() && text_[i] == ':') ++i;
    auto candidate = Value(i, latex, true);
    if (!candidate) return std::nullopt;
    size_t end = candidate->end;
    if (end < text_.size() && text_[end] == '.') ++end;
    end = SkipSpaces(text_, end);
    constexpr std::string_view kHope = "I hope";
    if (text_.substr(end, kHope.size()) != kHope) return std::nullopt;
    candidate->end = end + kHope.size();
    return candidate;
  }

  std::optional<Candidate> FinalAnswerJustIs(size_t i, bool latex) {
    i += std::string_view("final answer").size();
    for (int gap = 0; gap <= 100 && i < text_.size(); ++gap, i = NextCharacter(text_, i)) {
      const size_t word = SkipSpaces(text_, i);
      if (word > i && lower_.substr(word, 2) == "is") {
        size_t after = word + 2;
        if (after < text_.size() && text_[after] == ':') ++after;
        if (auto candidate = Value(after, latex, latex)) return candidate;
      }
      if (!latex && text_[i] == '\n') return std::nullopt;
    }
    return std::nullopt;
  }

  std::optional<Candidate> LatexAfter(size_t i) {
    for (int gap = 0; gap <= 50 && i <= text_.size(); ++gap, i = NextCharacter(text_, i)) {
      if (auto candidate = Latex(i)) return candidate;
    }
    return std::nullopt;
  }

  std::optional<Candidate> NumberAfter(size_t start) {
    // First choice: the last "=" within 100 characters that a number follows.
    std::vector<size_t> equals;
    size_t i = start;
    for (int gap = 0; gap <= 100 && i < text_.size(); ++gap, i = NextCharacter(text_, i)) {
      if (text_[i] == '=') equals.push_back(i);
      if (text_[i] == '\n') break;
    }
    for (auto at = equals.rbegin(); at != equals.rend(); ++at) {
      const size_t end = SkipSpaces(text_, *at + 1);
      for (size_t k = end + 1; k-- > (end > *at + 1 ? end - 1 : *at + 1);) {
        if (auto candidate = Plain(k, true)) return candidate;
      }
    }
    // Otherwise: the first number within 50 characters.
    i = start;
    for (int gap = 0; gap <= 50 && i < text_.size(); ++gap, i = NextCharacter(text_, i)) {
      if (auto candidate = Plain(i, true)) return candidate;
      if (text_[i] == '\n') break;
    }
    return std::nullopt;
  }

  void Boxed() {
    constexpr std::string_view kBoxed = "\\boxed{";
    const size_t begin = text_.find(kBoxed);
    const size_t end = text_.rfind('}');
    if (begin == kNone || end == kNone || end <= begin + kBoxed.size()) return;
    Candidate candidate;
    candidate.begin = begin;
    candidate.end = end + 1;
    candidate.pieces.push_back({text_.substr(begin, end + 1 - begin), false, true});
    found_.push_back(std::move(candidate));
  }

  const std::string_view text_, lower_;
  latex::Environments environments_;
  std::vector<Candidate> found_;
};

}  // namespace

CandidateFinder::CandidateFinder(std::string_view text) : text_(text), lower_(LowerCase(text)) {}

std::vector<Candidate> CandidateFinder::Group(int priority) const {
  return GroupScan(text_, lower_).Find(priority);
}

std::vector<Candidate> CandidateFinder::NextGroup() {
  static constexpr int kPriorities[] = {0, 50, 100, 200, 300};
  while (next_ < 5) {
    std::vector<Candidate> group = Group(kPriorities[next_++]);
    if (!group.empty()) return group;
  }
  return {};
}

}  // namespace taopd::grading
