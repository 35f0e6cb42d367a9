#include "trainer/grading/text.h"

#include <algorithm>

namespace taopd::grading {

size_t SkipSpaces(std::string_view text, size_t i) {
  while (i < text.size() && IsSpace(text[i])) ++i;
  return i;
}

size_t SkipDigits(std::string_view text, size_t i) {
  while (i < text.size() && IsDigit(text[i])) ++i;
  return i;
}

std::string Stripped(std::string_view text) {
  size_t begin = 0, end = text.size();
  while (begin < end && IsSpace(text[begin])) ++begin;
  while (end > begin && IsSpace(text[end - 1])) --end;
  return std::string(text.substr(begin, end - begin));
}

void ReplaceAll(std::string* text, std::string_view from, std::string_view to) {
  std::string out;
  size_t i = 0, found = text->find(from);
  if (found == std::string::npos) return;
  for (; found != std::string::npos; found = text->find(from, i)) {
    out.append(*text, i, found - i).append(to);
    i = found + from.size();
  }
  *text = out.append(*text, i, std::string::npos);
}

std::string LowerCase(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), Lower);
  return out;
}

size_t NumCharacters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !ContinuesCharacter(c); }));
}

}  // namespace taopd::grading
