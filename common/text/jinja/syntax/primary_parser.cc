// The parser of primaries and of the attributes, subscripts, calls, filters and tests after them.
#include <absl/strings/numbers.h>

#include <charconv>

#include "common/text/jinja/syntax/expression_parser.h"

namespace taopd::jinja {
namespace {

Value ParseIntegerToken(const Token& token) {
  std::string digits = token.text;
  std::erase(digits, '_');
  int base = 10;
  size_t begin = 0;
  if (digits.size() > 2 && digits[0] == '0') {
    base = digits[1] == 'x' || digits[1] == 'X'   ? 16
           : digits[1] == 'o' || digits[1] == 'O' ? 8
           : digits[1] == 'b' || digits[1] == 'B' ? 2
                                                  : 10;
    begin = base == 10 ? 0 : 2;
  }
  int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data() + begin, end, value, base);
  if (result.ec != std::errc() || result.ptr != end) {
    FailAt(token.position, "integer ", token.text, " is malformed or has more than 63 bits");
  }
  return Value(value);
}

Value ParseFloatToken(const Token& token) {
  std::string digits = token.text;
  std::erase(digits, '_');
  double value = 0;
  if (!absl::SimpleAtod(digits, &value)) FailAt(token.position, "malformed number ", token.text);
  return Value(value);
}

}  // namespace

ExpressionPtr ExpressionParser::ParsePrimary() {
  const Token token = current();
  switch (token.type) {
    case TokenType::kName:
      return ParseName();
    case TokenType::kText: {
      std::string text;
      for (; current().type == TokenType::kText; Advance()) text += current().text;
      ExpressionPtr node = Make(ExpressionKind::kConstant, token.position, {});
      node->constant = Value::OfText(std::move(text));
      return node;
    }
    case TokenType::kInteger:
    case TokenType::kFloat: {
      Advance();
      ExpressionPtr node = Make(ExpressionKind::kConstant, token.position, {});
      node->constant =
          token.type == TokenType::kInteger ? ParseIntegerToken(token) : ParseFloatToken(token);
      return node;
    }
    default:
      break;
  }
  if (SkipOperator("(")) {
    ExpressionPtr node = ParseTuple(/*with_condition=*/true, /*is_in_parentheses=*/true);
    ExpectOperator(")");
    return node;
  }
  if (SkipOperator("[")) return ParseItems(ExpressionKind::kList, token.position, "]");
  if (SkipOperator("{")) return ParseItems(ExpressionKind::kDict, token.position, "}");
  FailUnexpected("an expression");
}

ExpressionPtr ExpressionParser::ParseName() {
  const Token token = current();
  Advance();
  ExpressionPtr node = Make(ExpressionKind::kConstant, token.position, {});
  if (token.text == "true" || token.text == "True") {
    node->constant = Value(true);
  } else if (token.text == "false" || token.text == "False") {
    node->constant = Value(false);
  } else if (token.text == "none" || token.text == "None") {
    node->constant = Value(None{});
  } else {
    node->kind = ExpressionKind::kName;
    node->name = IdOf(token.text);
    for (MacroSyntax* macro : macros_) {
      macro->uses_caller |= token.text == "caller";
      macro->uses_varargs |= token.text == "varargs";
      macro->uses_kwargs |= token.text == "kwargs";
    }
  }
  return node;
}

ExpressionPtr ExpressionParser::ParseTuple(bool with_condition, bool is_in_parentheses,
                                           std::string_view ends_with_name) {
  const Position position = current().position;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  for (;;) {
    if (current().type == TokenType::kVariableEnd || current().type == TokenType::kBlockEnd ||
        IsOperator(")") || (!ends_with_name.empty() && IsName(ends_with_name))) {
      break;
    }
    items.push_back(ParseExpression(with_condition));
    if (!SkipOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!is_in_parentheses) FailUnexpected("an expression");
  }
  return Make(ExpressionKind::kTuple, position, std::move(items));
}

ExpressionPtr ExpressionParser::ParseItems(ExpressionKind kind, Position position,
                                           std::string_view end) {
  std::vector<ExpressionPtr> items;
  while (!IsOperator(end)) {
    if (!items.empty()) ExpectOperator(",");
    if (IsOperator(end)) break;
    items.push_back(ParseExpression());
    if (kind != ExpressionKind::kDict) continue;
    ExpectOperator(":");
    items.push_back(ParseExpression());
  }
  ExpectOperator(end);
  return Make(kind, position, std::move(items));
}

ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr operand) {
  for (;;) {
    if (IsOperator(".")) {
      operand = ParseDot(std::move(operand));
    } else if (IsOperator("[")) {
      operand = ParseSubscript(std::move(operand));
    } else if (IsOperator("(")) {
      operand = ParseCall(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::ParseFilterOrTest(ExpressionPtr operand) {
  for (;;) {
    if (IsOperator("|")) {
      operand = ParseFilters(std::move(operand), /*is_inline=*/false);
    } else if (IsName("is")) {
      operand = ParseTest(std::move(operand));
    } else if (IsOperator("(")) {
      operand = ParseCall(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExpressionPtr ExpressionParser::ParseDot(ExpressionPtr operand) {
  const Position position = current().position;
  ExpectOperator(".");
  const Token token = current();
  if (token.type == TokenType::kName) {
    Advance();
    ExpressionPtr node = Make(ExpressionKind::kAttribute, position, List(std::move(operand)));
    node->text = token.text;
    return node;
  }
  if (token.type != TokenType::kInteger) FailUnexpected("a name or number");
  ExpressionPtr index = ParsePrimary();
  return Make(ExpressionKind::kItem, position, List(std::move(operand), std::move(index)));
}

ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr operand) {
  const Position position = current().position;
  ExpectOperator("[");
  // Parses start : stop : step, each of them optional; it is a slice if there is a colon.
  ExpressionPtr parts[3];
  int num_colons = 0;
  for (;;) {
    if (SkipOperator(":")) {
      if (++num_colons > 2) FailAt(current().position, "slice of more than three parts");
    } else if (!IsOperator("]") && parts[num_colons] == nullptr) {
      parts[num_colons] = ParseExpression();
    } else {
      break;
    }
  }
  std::vector<ExpressionPtr> children = List(std::move(operand));
  if (num_colons > 0) {
    ExpectOperator("]");
    for (ExpressionPtr& part : parts) children.push_back(std::move(part));
    return Make(ExpressionKind::kSlice, position, std::move(children));
  }
  if (parts[0] == nullptr) FailUnexpected("a subscript");
  if (IsOperator(",")) {  // a[1, 2] is a[(1, 2)]
    std::vector<ExpressionPtr> items = List(std::move(parts[0]));
    while (SkipOperator(",")) items.push_back(ParseExpression());
    parts[0] = Make(ExpressionKind::kTuple, position, std::move(items));
  }
  ExpectOperator("]");
  children.push_back(std::move(parts[0]));
  return Make(ExpressionKind::kItem, position, std::move(children));
}

CallArguments ExpressionParser::ParseArguments() {
  const Position position = current().position;
  ExpectOperator("(");
  CallArguments arguments;
  bool needs_comma = false;
  while (!IsOperator(")")) {
    if (needs_comma) ExpectOperator(",");
    if (IsOperator(")")) break;
    needs_comma = true;
    const bool has_rest = arguments.rest != nullptr, has_all = arguments.rest_keywords != nullptr;
    if (IsOperator("*") && !has_rest && !has_all) {
      Advance();
      arguments.rest = ParseExpression();
    } else if (IsOperator("**") && !has_all) {
      Advance();
      arguments.rest_keywords = ParseExpression();
    } else if (current().type == TokenType::kName && next().type == TokenType::kOperator &&
               next().text == "=" && !has_all) {
      std::string name = ExpectName();
      Advance();
      for (const auto& [other, value] : arguments.keywords) {
        if (other == name) FailAt(position, "keyword argument repeated: ", name);
      }
      arguments.keywords.emplace_back(std::move(name), ParseExpression());
    } else {
      if (has_rest || has_all || !arguments.keywords.empty()) {
        FailAt(position, "invalid syntax for function call expression");
      }
      arguments.positional.push_back(ParseExpression());
    }
  }
  ExpectOperator(")");
  return arguments;
}

ExpressionPtr ExpressionParser::ParseCall(ExpressionPtr operand) {
  const Position position = current().position;
  ExpressionPtr node = Make(ExpressionKind::kCall, position, List(std::move(operand)));
  ParseArgumentsOf(node.get());
  return node;
}

ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr operand, bool is_inline) {
  while (IsOperator("|") || is_inline) {
    if (!is_inline) Advance();
    is_inline = false;
    const Position position = current().position;
    std::string name = ExpectName();
    while (SkipOperator(".")) name += "." + ExpectName();
    operand = Make(ExpressionKind::kFilter, position, List(std::move(operand)));
    operand->builtin = FindFilter(name);
    if (operand->builtin == nullptr) FailAt(position, "no filter named '", name, "'");
    operand->text = std::move(name);
    if (IsOperator("(")) ParseArgumentsOf(operand.get());
  }
  return operand;
}

ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr operand) {
  const Position position = current().position;
  ExpectName("is");
  const bool is_negated = SkipName("not");
  std::string name = ExpectName();
  while (SkipOperator(".")) name += "." + ExpectName();
  ExpressionPtr node = Make(ExpressionKind::kTest, position, List(std::move(operand)));
  node->builtin = FindTest(name);
  if (node->builtin == nullptr) FailAt(position, "no test named '", name, "'");
  node->text = std::move(name);
  const TokenType type = current().type;
  if (IsOperator("(")) {
    ParseArgumentsOf(node.get());
  } else if (type == TokenType::kText || type == TokenType::kInteger || type == TokenType::kFloat ||
             IsOperator("[") || IsOperator("{") ||
             (type == TokenType::kName && !IsName("else") && !IsName("or") && !IsName("and"))) {
    if (IsName("is")) FailAt(current().position, "tests with is cannot be chained");
    node->arguments.positional.push_back(ParsePostfix(ParsePrimary()));
  }
  if (!is_negated) return node;
  return Make(ExpressionKind::kNot, position, List(std::move(node)));
}

}  // namespace taopd::jinja
