// A text in which {name} stands for a part of a row: {prompt}, {answer}, or a key such as
// {solution}. A name consists of letters, digits, _, - and, as a dotted path, periods. {{ and }}
// stand for braces; every other brace stands for itself.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

class RowTemplate {
 public:
  RowTemplate() = default;
  explicit RowTemplate(const std::string& text);

  bool empty() const { return pieces_.empty(); }
  // Returns the names in the order of the text; a name that occurs twice is listed twice.
  std::vector<std::string> Names() const;
  bool Has(const std::string& name) const;
  // Returns the text with each name replaced by its value, or the first error of `value_of`.
  absl::StatusOr<std::string> Fill(
      const std::function<absl::StatusOr<std::string>(const std::string& name)>& value_of) const;

 private:
  // Text, or a placeholder's name.
  struct Piece {
    std::string text;
    bool is_name = false;
  };
  void AddText(char c);

  std::vector<Piece> pieces_;
};

}  // namespace taopd
