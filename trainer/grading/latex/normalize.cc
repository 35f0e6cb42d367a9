#include "trainer/grading/latex/normalize.h"

#include <re2/re2.h>

#include <algorithm>
#include <vector>

#include "trainer/grading/text.h"

namespace taopd::grading::latex {
namespace {

// The rule of latex2sympy2_extended: boxes are parts of one answer if fewer characters than the
// first number are between them, or fewer than the second and a separator.
constexpr size_t kCloseBoxes = 10, kSeparatedBoxes = 70;

bool BelongsToNextBox(std::string_view between, const std::string& content,
                      const std::string& next) {
  const size_t length = NumCharacters(between);
  if (length < kCloseBoxes) return true;
  static const RE2 separator(R"(\b(?:and|or)\b|,|;)", RE2::Latin1);
  return content != next && length < kSeparatedBoxes &&
         RE2::PartialMatch(re2::StringPiece(between.data(), between.size()), separator);
}

// The patterns match bytes: an answer may hold any bytes, and no pattern here counts characters.
const RE2::Options& Latin1() {
  static const RE2::Options options = [] {
    RE2::Options o(RE2::Latin1);
    o.set_log_errors(false);
    return o;
  }();
  return options;
}

void ReplaceCommands(std::string* text) {
  ReplaceAll(text, "\\mathrm{T}", "T");
  ReplaceAll(text, "\\mathrm{d}", "d");
  ReplaceAll(text, "{\\rm d}", "d");
  ReplaceAll(text, "\\left[\\begin{matrix}", "\\begin{bmatrix}");
  ReplaceAll(text, "\\end{matrix}\\right]", "\\end{bmatrix}");
  static const RE2 left(
      R"(\\m?left(\\\{|\{|\\\||\||\[|\(|\\(?:lgroup|lbrace|lbrack|vert|lvert|lceil|lfloor|langle|llcorner|ulcorner)))",
      Latin1());
  static const RE2 right(
      R"(\\m?right(\\\}|\}|\\\||\||\]|\)|\\(?:rgroup|rbrace|rbrack|vert|rvert|rceil|rfloor|rangle|lrcorner|urcorner)))",
      Latin1());
  static const RE2 permutation(R"(\(([a-zA-Z0-9+\-*/\\ ]+?)\)_\{([a-zA-Z0-9+\-*/\\ ]+?)\})",
                               Latin1());
  RE2::GlobalReplace(text, left, "\\1");
  RE2::GlobalReplace(text, right, "\\1");
  RE2::GlobalReplace(text, permutation, "\\\\frac{(\\1)!}{((\\1)-(\\2))!}");
}

void DropDecoration(std::string* text) {
  static const RE2 decoration(
      R"(^(?:\\mathrm\{th\}|\\!\s*|\\text\s*\{\s*\}|\\\$|\$|\\displaystyle))", Latin1());
  std::string out;
  re2::StringPiece rest(*text);
  while (!rest.empty()) {
    const size_t before = rest.size();
    if (RE2::Consume(&rest, decoration) && rest.size() < before) continue;
    const char c = rest[0];
    const size_t i = static_cast<size_t>(rest.data() - text->data());
    const bool quote = (c == '"' || c == '\'') && (i == 0 || (*text)[i - 1] != '\\');
    if (!quote) out += c;
    rest.remove_prefix(1);
  }
  *text = std::move(out);
}

// A rule of RegularSpelling, which makes one pass and applies the first matching rule at each
// place. `before` restricts the character before that place.
struct SpellingRule {
  // Anchored.
  RE2 pattern;
  std::string replacement;
  enum { kAnything, kNoLetter, kNoBackslash } before = kAnything;
  bool no_letter_after = false;
};

void RegularSpelling(std::string* text) {
  using R = SpellingRule;
  static const SpellingRule kRules[] = {
      {RE2(R"(\\math(?:rm|it|bf))", Latin1()), "\\text"},
      {RE2(R"(\\text(?:normal|bf|it|rm))", Latin1()), "\\text"},
      {RE2(R"(\\[dtc]frac)", Latin1()), "\\frac"},
      {RE2(R"(\s\.)", Latin1()), " 0."},
      {RE2(R"(\{\.)", Latin1()), "{0."},
      {RE2(R"(~=)", Latin1()), "\\approx"},
      {RE2(R"(\s*\{\s*,\s*\})", Latin1()), ","},
      {RE2(R"(,?\s*(?:and|or))", Latin1()), ",", R::kNoLetter, true},
      {RE2(R"(,?\s*\\text\{\s*(?:and|or)\s*\})", Latin1()), ","},
      {RE2(R"(\\\s)", Latin1()), " ", R::kNoBackslash},
      {RE2(R"(infinity)", Latin1()), "\\infty"},
      {RE2(R"(,?\\ldots)", Latin1()), " "},
      {RE2(R"(\s*\bpercentage\b)", Latin1()), "\\%"},
      {RE2(R"(\\text\{percentage\})", Latin1()), "%"},
      {RE2(R"(\s*\bpercent\b)", Latin1()), "\\%"},
      {RE2(R"(\\text\{percent\})", Latin1()), "%"},
      {RE2(R"(\s*\bpct\b)", Latin1()), "\\%"},
      {RE2(R"(\\text\{pct\})", Latin1()), "%"},
      {RE2(R"(inf)", Latin1()), "\\infty", R::kNoBackslash},
      {RE2(R"( sqrt)", Latin1()), "\\sqrt"},
  };
  // Every rule begins with one of these characters.
  static constexpr std::string_view kFirst = "\\ \t\r\n\f\v{~,aoip";
  std::string out;
  size_t i = 0;
  while (i < text->size()) {
    const char c = (*text)[i];
    bool replaced = false;
    if (kFirst.find(c) != std::string_view::npos) {
      const char before = i > 0 ? (*text)[i - 1] : '\0';
      for (const SpellingRule& rule : kRules) {
        if (rule.before == SpellingRule::kNoLetter && IsLetter(before)) continue;
        if (rule.before == SpellingRule::kNoBackslash && before == '\\') continue;
        re2::StringPiece match;
        if (!rule.pattern.Match(*text, i, text->size(), RE2::ANCHOR_START, &match, 1) ||
            match.empty())
          continue;
        const size_t end = i + match.size();
        if (rule.no_letter_after && end < text->size() && IsLetter((*text)[end])) continue;
        out += rule.replacement;
        i = end;
        replaced = true;
        break;
      }
    }
    if (!replaced) out += (*text)[i++];
  }
  *text = std::move(out);
}

// 5\text{ m}^2 -> 5. If a \text ends the answer, everything from the first \text on is dropped.
void DropTrailingText(std::string* text) {
  const size_t begin = std::min(text->find("\\text{"), text->find("\\mbox{"));
  if (begin == std::string::npos) return;
  static const RE2 ending(R"(\}(?:\^\d|\{\^\d\})?$)", Latin1());
  if (!RE2::PartialMatch(re2::StringPiece(*text).substr(begin), ending)) return;
  std::string rest = Stripped(text->substr(0, begin));
  if (!rest.empty()) *text = std::move(rest);
}

// Matches the words that math-verify treats as units at the end of an answer. A dot stands for any
// character.
const RE2& UnitPattern() {
  static constexpr std::string_view kUnits =
      "integerpoint|feet|sue|digit|pound|meal|edge|student|children ticket|multiple|east|degree|"
      "mph|kmph|ft|m square| m east|sq m|deg|mile|q .|monkey|prime|ratio|profit of rs|rd|o|gm|"
      "p . m|lb|tile|per|dm|lt|gain|ab|way|west|a .|b .|c .|d .|e .|f .|g .|h .|t|h|no change|men|"
      "soldier|pie|bc|excess|st|inches|noon|cent|by|gal|kmh|c|acre|rise|a . m|th|sq|mark|l|toy|"
      "coin|sq . m|gallon|profit|minw|yr|women|am|pm|hr|cu cm|square|are|rupee|rounds|cubic|cc|"
      "mtr|s|ohm|number|day|hour|minute|min|second|man|woman|sec|cube|mt|sq inch|mp|hectare|more|"
      "unit|cu . m|cm 2|rs .|rs|kg|g|month|km|m|cm|mm|apple|liter|loss|yard|pure|year|increase|"
      "decrease|d|less|Surface|litre|pi sq m|s .|metre|meter|inch";
  static const RE2 pattern(R"((\d|\}|\s)\s*(?:)" + std::string(kUnits) + R"()(?:s|es)?\s*$)",
                           Latin1());
  return pattern;
}

void DropUnits(std::string* text) {
  for (int pass = 0; pass < 2; ++pass) {
    std::string shorter = *text;
    if (RE2::Replace(&shorter, UnitPattern(), "\\1") && !shorter.empty())
      *text = std::move(shorter);
  }
}

void CompleteOperators(std::string* text) {
  struct Rewrite {
    RE2 pattern;
    std::string replacement;
  };
  static const Rewrite kRewrites[] = {
      {RE2(R"(\^\s?\((.*?)\))", Latin1()), R"(^{\1})"},
      {RE2(R"(sqrt\s?\((.*?)\))", Latin1()), R"(\\sqrt{\1})"},
      {RE2(R"(\\frac\s?(\d)\s?(\d+))", Latin1()), R"(\\frac{\1}{\2})"},
      {RE2(R"(\\log_\s?(\d)\s?(\d+))", Latin1()), R"(\\log_{\1}{\2})"},
      {RE2(R"(\\frac\s?\{(.*?)\}\s?(\d))", Latin1()), R"(\\frac{\1}{\2})"},
      {RE2(R"(\\frac\s?(\d)\s?\{(.*?)\})", Latin1()), R"(\\frac{\1}{\2})"},
      {RE2(R"(\\sqrt\s?(\d))", Latin1()), R"(\\sqrt{\1})"},
  };
  for (const Rewrite& rewrite : kRewrites)
    RE2::GlobalReplace(text, rewrite.pattern, rewrite.replacement);
  ReplaceAll(text, " sqrt", "\\sqrt");
}

// Turns \sqrt3 into \sqrt{3}.
void CompleteRoots(std::string* text) {
  constexpr std::string_view kSqrt = "\\sqrt";
  std::string out;
  size_t i = 0, found;
  while ((found = text->find(kSqrt, i)) != std::string::npos) {
    out.append(*text, i, found + kSqrt.size() - i);
    i = found + kSqrt.size();
    while (i < text->size() && IsSpace((*text)[i])) ++i;
    if (i < text->size() && (*text)[i] != '{' && (*text)[i] != '[' &&
        text->compare(i, kSqrt.size(), kSqrt) != 0) {
      out += std::string("{") + (*text)[i++] + "}";
    }
  }
  out.append(*text, std::min(i, text->size()));
  *text = std::move(out);
}

// Turns \frac12 into \frac{1}{2}. Leaves the text alone if any \frac lacks its arguments.
void CompleteFractions(std::string* text) {
  constexpr std::string_view kFrac = "\\frac";
  std::string out;
  size_t i = 0, found;
  while ((found = text->find(kFrac, i)) != std::string::npos) {
    out.append(*text, i, found + kFrac.size() - i);
    i = found + kFrac.size();
    while (i < text->size() && IsSpace((*text)[i])) ++i;
    const size_t next = std::min(text->find(kFrac, i), text->size());
    if (i < next && (*text)[i] == '{') continue;
    if (next - i < 2) return;
    const char top = (*text)[i], bottom = (*text)[i + 1];
    out += std::string("{") + top + "}";
    out += bottom == '{' ? std::string("{") : std::string("{") + bottom + "}";
    i += 2;
  }
  out.append(*text, std::min(i, text->size()));
  *text = std::move(out);
}

// Turns an answer that is a/b into \frac{a}{b}.
void CompleteSlash(std::string* text) {
  static const RE2 slash(R"((-?(?:0|[1-9]\d*))/(-?(?:0|[1-9]\d*)))", Latin1());
  std::string top, bottom;
  if (RE2::FullMatch(*text, slash, &top, &bottom) && top != "-0" && bottom != "-0") {
    *text = "\\frac{" + top + "}{" + bottom + "}";
  }
}

}  // namespace

std::string BoxedContent(std::string_view text, BoxedMode mode) {
  struct Box {
    size_t begin, command_end;
  };
  std::vector<Box> boxes;
  for (size_t i = text.find('\\'); i != std::string_view::npos; i = text.find('\\', i + 1)) {
    if (text.substr(i, 6) == "\\boxed") boxes.push_back({i, i + 6});
    if (text.substr(i, 5) == "\\fbox") boxes.push_back({i, i + 5});
  }
  // Go from the last box to the first.
  std::vector<std::string> contents;
  size_t limit = text.size();
  for (auto box = boxes.rbegin(); box != boxes.rend(); ++box) {
    size_t open = box->command_end;
    while (open < limit && IsSpace(text[open])) ++open;
    if (open >= limit) break;
    if (text[open] != '{') {
      if (contents.empty()) contents.emplace_back(text.substr(open));
      break;
    }
    int depth = 1;
    size_t close = open;
    while (depth > 0 && ++close < limit) {
      if (text[close] == '{') ++depth;
      if (text[close] == '}') --depth;
    }
    if (depth > 0) {
      if (contents.empty()) contents.emplace_back(text.substr(open));
      break;
    }
    std::string content = Stripped(std::string(text.substr(open + 1, close - open - 1)));
    if (mode == BoxedMode::kLast && limit < text.size() &&
        !BelongsToNextBox(text.substr(close + 1, limit - close - 1), content,
                          contents.empty() ? "" : contents.back())) {
      break;
    }
    if (contents.empty() || contents.back() != content) contents.push_back(std::move(content));
    limit = box->begin;
  }
  if (contents.empty()) return std::string(text);
  std::string joined;
  for (size_t i = contents.size(); i-- > 0;) joined += contents[i] + (i > 0 ? "," : "");
  return joined;
}

std::string Normalize(std::string_view source, BoxedMode mode) {
  std::string text = BoxedContent(source, mode);
  ReplaceCommands(&text);
  DropDecoration(&text);
  RegularSpelling(&text);
  std::ranges::replace(text, '\n', ' ');
  std::ranges::replace(text, '\t', ' ');
  if (text.find("matrix") == std::string::npos) {
    static const RE2 doubled(R"(\\\\([a-zA-Z]))", Latin1());
    RE2::GlobalReplace(&text, doubled, R"(\\\1)");
  }
  DropTrailingText(&text);
  DropUnits(&text);
  if (!text.empty() && text[0] == '.') text.insert(0, "0");
  if (text == "0.5") text = "\\frac{1}{2}";
  CompleteOperators(&text);
  CompleteRoots(&text);
  CompleteFractions(&text);
  CompleteSlash(&text);
  return Stripped(text);
}

}  // namespace taopd::grading::latex
