#include "common/text/jinja/syntax/expression_parser.h"

#include <array>

#include "common/text/jinja/limits.h"

namespace taopd::jinja {
namespace {

constexpr std::array<std::pair<std::string_view, Operator>, 6> kComparisons = {{
    {"==", Operator::kEqual},
    {"!=", Operator::kNotEqual},
    {"<", Operator::kLess},
    {"<=", Operator::kLessEqual},
    {">", Operator::kGreater},
    {">=", Operator::kGreaterEqual},
}};

// Returns the token's name for messages.
std::string Describe(const Token& token) {
  if (token.type == TokenType::kEnd) return "end of template";
  if (token.type == TokenType::kBlockEnd) return "end of statement block";
  if (token.type == TokenType::kVariableEnd) return "end of print statement";
  const std::string text = token.text.substr(0, 40);
  return token.type == TokenType::kText ? "string \"" + text + "\"" : "'" + text + "'";
}

}  // namespace

ExpressionParser::Nested::Nested(ExpressionParser* parser) : parser_(parser) {
  CheckDepth(++parser_->depth_, parser_->current().position);
}

std::vector<ExpressionPtr> ExpressionParser::List(ExpressionPtr a, ExpressionPtr b) {
  std::vector<ExpressionPtr> list;
  list.push_back(std::move(a));
  if (b != nullptr) list.push_back(std::move(b));
  return list;
}

bool ExpressionParser::Skip(TokenType type, std::string_view text) {
  if (!Is(type, text)) return false;
  Advance();
  return true;
}

void ExpressionParser::Expect(TokenType type, std::string_view text) {
  if (!Skip(type, text)) FailUnexpected(Concat("'", text, "'"));
}

std::string ExpressionParser::ExpectName() {
  if (current().type != TokenType::kName) FailUnexpected("a name");
  std::string name = current().text;
  Advance();
  return name;
}

void ExpressionParser::FailUnexpected(std::string_view expected) const {
  FailAt(current().position, "expected ", expected, ", got ", Describe(current()));
}

NameId ExpressionParser::IdOf(const std::string& name) {
  const auto [entry, is_new] = ids_.try_emplace(name, static_cast<NameId>(names_.size()));
  if (is_new) names_.push_back(name);
  return entry->second;
}

ExpressionPtr ExpressionParser::Make(ExpressionKind kind, Position position,
                                     std::vector<ExpressionPtr> children) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->position = position;
  for (const ExpressionPtr& child : children) {
    if (child != nullptr) expression->depth = std::max(expression->depth, child->depth + 1);
  }
  // The tree of a + b + c + ... is as deep as it is long, and is evaluated and freed by recursion.
  CheckDepth(expression->depth, position);
  expression->children = std::move(children);
  return expression;
}

void ExpressionParser::CheckDepth(int depth, Position position) {
  if (depth <= kMaxSyntaxDepth) return;
  throw TemplateError(absl::StatusCode::kResourceExhausted,
                      Concat("nested deeper than the limit of ", kMaxSyntaxDepth), position);
}

void ExpressionParser::ParseArgumentsOf(Expression* node) {
  node->arguments = ParseArguments();
  const CallArguments& arguments = node->arguments;
  auto consider = [&](const ExpressionPtr& argument) {
    if (argument != nullptr) node->depth = std::max(node->depth, argument->depth + 1);
  };
  for (const ExpressionPtr& argument : arguments.positional) consider(argument);
  for (const auto& [name, argument] : arguments.keywords) consider(argument);
  consider(arguments.rest);
  consider(arguments.rest_keywords);
  CheckDepth(node->depth, node->position);
}

ExpressionPtr ExpressionParser::ParseExpression(bool with_condition) {
  const Nested nested(this);
  ExpressionPtr value = ParseOr();
  while (with_condition && IsName("if")) {
    const Position position = current().position;
    Advance();
    ExpressionPtr condition = ParseOr();
    ExpressionPtr alternative = SkipName("else") ? ParseExpression() : nullptr;
    std::vector<ExpressionPtr> children = List(std::move(value), std::move(condition));
    children.push_back(std::move(alternative));
    value = Make(ExpressionKind::kConditional, position, std::move(children));
  }
  return value;
}

ExpressionPtr ExpressionParser::ParseLogical(std::string_view name, ExpressionKind kind,
                                             ParseFunction parse_operand) {
  ExpressionPtr left = (this->*parse_operand)();
  while (IsName(name)) {
    const Position position = current().position;
    Advance();
    left = Make(kind, position, List(std::move(left), (this->*parse_operand)()));
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseBinary(Operators operators, ParseFunction parse_operand) {
  ExpressionPtr left = (this->*parse_operand)();
  for (;;) {
    const Position position = current().position;
    const auto found = std::find_if(operators.begin(), operators.end(),
                                    [&](const auto& known) { return IsOperator(known.first); });
    if (found == operators.end()) return left;
    Advance();
    left = Make(ExpressionKind::kBinary, position, List(std::move(left), (this->*parse_operand)()));
    left->operators = {found->second};
  }
}

ExpressionPtr ExpressionParser::ParseOr() {
  return ParseLogical("or", ExpressionKind::kOr, &ExpressionParser::ParseAnd);
}

ExpressionPtr ExpressionParser::ParseAnd() {
  return ParseLogical("and", ExpressionKind::kAnd, &ExpressionParser::ParseNot);
}

ExpressionPtr ExpressionParser::ParseNot() {
  const Nested nested(this);
  const Position position = current().position;
  if (!SkipName("not")) return ParseCompare();
  return Make(ExpressionKind::kNot, position, List(ParseNot()));
}

ExpressionPtr ExpressionParser::ParseCompare() {
  const Position position = current().position;
  ExpressionPtr left = ParseSum();
  std::vector<ExpressionPtr> operands;
  std::vector<Operator> operators;
  for (;;) {
    const auto found =
        std::find_if(kComparisons.begin(), kComparisons.end(),
                     [&](const auto& comparison) { return IsOperator(comparison.first); });
    if (found != kComparisons.end()) {
      Advance();
      operators.push_back(found->second);
    } else if (SkipName("in")) {
      operators.push_back(Operator::kIn);
    } else if (IsName("not") && next().type == TokenType::kName && next().text == "in") {
      Advance();
      Advance();
      operators.push_back(Operator::kNotIn);
    } else {
      break;
    }
    if (operands.empty()) operands.push_back(std::move(left));
    operands.push_back(ParseSum());
  }
  if (operators.empty()) return left;
  ExpressionPtr compare = Make(ExpressionKind::kCompare, position, std::move(operands));
  compare->operators = std::move(operators);
  return compare;
}

ExpressionPtr ExpressionParser::ParseSum() {
  return ParseBinary({{"+", Operator::kAdd}, {"-", Operator::kSubtract}},
                     &ExpressionParser::ParseConcatenate);
}

ExpressionPtr ExpressionParser::ParseConcatenate() {
  const Position position = current().position;
  std::vector<ExpressionPtr> parts = List(ParseProduct());
  while (SkipOperator("~")) parts.push_back(ParseProduct());
  if (parts.size() == 1) return std::move(parts[0]);
  return Make(ExpressionKind::kConcatenate, position, std::move(parts));
}

ExpressionPtr ExpressionParser::ParseProduct() {
  return ParseBinary({{"*", Operator::kMultiply},
                      {"/", Operator::kDivide},
                      {"//", Operator::kFloorDivide},
                      {"%", Operator::kModulo}},
                     &ExpressionParser::ParsePower);
}

ExpressionPtr ExpressionParser::ParsePower() {
  return ParseBinary({{"**", Operator::kPower}}, &ExpressionParser::ParseFiltered);
}

ExpressionPtr ExpressionParser::ParseFiltered() { return ParseFilterOrTest(ParseUnary()); }

// The sign binds more tightly than the filters after it: -42 | abs is 42.
ExpressionPtr ExpressionParser::ParseUnary() {
  const Nested nested(this);
  const Position position = current().position;
  ExpressionPtr node;
  if (SkipOperator("-")) {
    node = Make(ExpressionKind::kNegative, position, List(ParseUnary()));
  } else if (SkipOperator("+")) {
    node = Make(ExpressionKind::kPositive, position, List(ParseUnary()));
  } else {
    node = ParsePrimary();
  }
  return ParsePostfix(std::move(node));
}

}  // namespace taopd::jinja
