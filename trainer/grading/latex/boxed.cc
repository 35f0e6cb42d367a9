#include "trainer/grading/latex/boxed.h"

#include <re2/re2.h>

#include <vector>

#include "trainer/grading/text.h"

namespace taopd::grading::latex {
namespace {

bool BelongsToNextBox(std::string_view between, const std::string& content,
                      const std::string& next) {
  const size_t length = NumCharacters(between);
  if (length < 10) return true;
  static const RE2 separator(R"(\b(?:and|or)\b|,|;)", RE2::Latin1);
  return content != next && length < 70 &&
         RE2::PartialMatch(re2::StringPiece(between.data(), between.size()), separator);
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

}  // namespace taopd::grading::latex
