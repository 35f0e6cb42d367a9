#include "trainer/data/row_template.h"

#include <absl/strings/ascii.h>

#include <algorithm>

namespace taopd {
namespace {

// Returns the name of the placeholder that begins at the brace text[at], or an empty text.
std::string NameAt(const std::string& text, size_t at) {
  const size_t end = text.find('}', at);
  if (end == std::string::npos) return "";
  std::string name = text.substr(at + 1, end - at - 1);
  const bool is_name = std::ranges::all_of(name, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
  return is_name ? name : "";
}

}  // namespace

RowTemplate::RowTemplate(const std::string& text) {
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const bool is_brace = c == '{' || c == '}';
    if (is_brace && at + 1 < text.size() && text[at + 1] == c) {
      AddText(c);
      ++at;
    } else if (const std::string name = c == '{' ? NameAt(text, at) : ""; !name.empty()) {
      pieces_.push_back({name, /*is_name=*/true});
      at += name.size() + 1;
    } else {
      AddText(c);
    }
  }
}

void RowTemplate::AddText(char c) {
  if (pieces_.empty() || pieces_.back().is_name) pieces_.emplace_back();
  pieces_.back().text += c;
}

std::vector<std::string> RowTemplate::Names() const {
  std::vector<std::string> names;
  for (const Piece& piece : pieces_) {
    if (piece.is_name) names.push_back(piece.text);
  }
  return names;
}

bool RowTemplate::Has(const std::string& name) const {
  return std::ranges::any_of(
      pieces_, [&](const Piece& piece) { return piece.is_name && piece.text == name; });
}

absl::StatusOr<std::string> RowTemplate::Fill(
    const std::function<absl::StatusOr<std::string>(const std::string& name)>& value_of) const {
  std::string text;
  for (const Piece& piece : pieces_) {
    if (!piece.is_name) {
      text += piece.text;
      continue;
    }
    TAOPD_ASSIGN_OR_RETURN(const std::string value, value_of(piece.text));
    text += value;
  }
  return text;
}

}  // namespace taopd
