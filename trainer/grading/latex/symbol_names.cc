#include "trainer/grading/latex/symbol_names.h"

#include <algorithm>
#include <map>

namespace taopd::grading::latex {

std::string AccentName(const std::string& token) {
  const size_t open = token.find('{');
  std::string command = token.substr(1, open - 1);
  while (!command.empty() && std::isspace(static_cast<unsigned char>(command.back())))
    command.pop_back();
  std::string text = token.substr(open + 1, token.size() - open - 2);
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  if (command.find("text") != std::string::npos || command == "mbox") {
    text.erase(
        std::remove_if(text.begin(), text.end(), [](char c) { return c == '(' || c == ')'; }),
        text.end());
    return text;
  }
  if (command == "overline") command = "bar";
  if (command == "overrightarrow") command = "vec";
  if (command == "widetilde") command = "tilde";
  if (command.find("math") != std::string::npos) command = "math";
  return command + "{" + text + "}";
}

bool SpeaksOfComplexNumbers(std::string_view latex) {
  for (const std::string_view sign :
       {"\\mathbb{C}", "\\text{i}", "\\mathrm{i}", "\\imath", "\\det", "\\operatorname{tr}",
        "\\operatorname{rank}", "\\text{rank}", "\\arg{", "\\Re{", "\\Im{", "\\operatorname{Re}",
        "\\operatorname{Im}", "\\text{Re}", "\\text{Im}"}) {
    if (latex.find(sign) != std::string_view::npos) return true;
  }
  const auto in_word = [&](size_t i) {
    return i < latex.size() &&
           (std::isalnum(static_cast<unsigned char>(latex[i])) != 0 || latex[i] == '_');
  };
  for (size_t i = latex.find('i'); i != std::string_view::npos; i = latex.find('i', i + 1)) {
    if ((i == 0 || !in_word(i - 1)) && !in_word(i + 1)) return true;
  }
  return false;
}

ExprPtr SymbolOrConstant(const std::string& name, bool real) {
  static const std::map<std::string, std::string> greek_letters = {
      {"\u03B1", "alpha"},    {"\u03B2", "beta"},       {"\u03B3", "gamma"},
      {"\u0393", "gamma"},    {"\u03B4", "delta"},      {"\u0394", "delta"},
      {"\u03B5", "epsilon"},  {"\u03F5", "varepsilon"}, {"\u03B6", "zeta"},
      {"\u03B7", "eta"},      {"\u03B8", "theta"},      {"\u0398", "theta"},
      {"\u03D1", "vartheta"}, {"\u03B9", "iota"},       {"\u03BA", "kappa"},
      {"\u03BB", "lambda"},   {"\u039B", "lambda"},     {"\u03BC", "mu"},
      {"\u03BD", "nu"},       {"\u03BE", "xi"},         {"\u039E", "xi"},
      {"\u03BF", "omicron"},  {"\u03C0", "pi"},         {"\u03A0", "Pi"},
      {"\u03D6", "varpi"},    {"\u03C1", "rho"},        {"\u03F1", "varrho"},
      {"\u03C3", "sigma"},    {"\u03A3", "sigma"},      {"\u03C2", "varsigma"},
      {"\u03C4", "tau"},      {"\u03C5", "upsilon"},    {"\u03A5", "upsilon"},
      {"\u03C6", "phi"},      {"\u03A6", "phi"},        {"\u03D5", "varphi"},
      {"\u03C7", "chi"},      {"\u03C8", "psi"},        {"\u03A8", "psi"},
      {"\u03C9", "omega"},    {"\u03A9", "omega"}};
  std::string text = name;
  while (!text.empty() && text.back() == ' ') text.pop_back();
  text.erase(0, text.find_first_not_of(' '));
  if (const auto found = greek_letters.find(text); found != greek_letters.end())
    text = found->second;
  if (!text.empty() && text[0] == '\\') text.erase(0, 1);
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(c < 0x80 ? std::tolower(c) : c); });
  if (text == "pi") return MakeConstant(ExprKind::kPi);
  if (text == "gamma") return MakeConstant(ExprKind::kEulerGamma);
  return MakeSymbol(real ? text : kComplexMark + text);
}

}  // namespace taopd::grading::latex
