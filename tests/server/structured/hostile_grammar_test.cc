// Specs that are made to hurt: each is answered, soon, and neither this process nor the next
// request notices.
#include <absl/time/clock.h>
#include <gmock/gmock.h>

#include "common/base/memory.h"
#include "tests/server/structured/grammar_text.h"
#include "tests/support/mutation.h"

namespace taopd::testing {
namespace {

using Kind = GrammarSpec::Kind;

constexpr size_t kLargestSpecBytes = 10 << 20;
// The allocator keeps the memory of about one such text. With sanitizers it keeps several copies.
constexpr int64_t kMaxGrowthBytes = 7 * kLargestSpecBytes;
constexpr int kNumFollowed = 200;  // tokens

// A schema that takes seconds, and hundreds of megabytes, to compile.
std::string LargeSchema() {
  std::string schema = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 1500; ++i)
    schema +=
        Concat(i > 0 ? "," : "", "\"p", i, R"(": {"type": "string", "pattern": "(a|b){0,90}c"})");
  return schema + "}}";
}

std::vector<std::pair<Kind, std::string>> HostileSpecs() {
  std::string chain = "root ::= a0\n", doubling = R"({"$defs": {"d0": {"type": "string"})";
  for (int i = 0; i < 40; ++i) {
    chain += Concat("a", i, " ::= a", i + 1, " a", i + 1, "\n");
    doubling +=
        Concat(", \"d", i + 1, R"(": {"type": "array", "prefixItems": [{"$ref": "#/$defs/d)", i,
               R"("}, {"$ref": "#/$defs/d)", i, "\"}]}");
  }
  chain += "a40 ::= \"x\"\n";
  doubling += R"(}, "$ref": "#/$defs/d40"})";
  std::string all_of = R"({"allOf": [)";
  for (int i = 0; i < 1500; ++i)
    all_of += Concat(i > 0 ? "," : "", R"({"properties": {"p)", i, R"(": {"type": "string"}}})");
  return {
      {Kind::kRegex, "((a{1,1000}){1,1000}){1,1000}"},
      {Kind::kRegex, "(.*a){60}"},
      {Kind::kRegex, "(a|a|aa|aaa)*(a|a|aa|aaa)*b{3000,4000}"},
      {Kind::kRegex, "(a?){4000}a{4000}"},
      {Kind::kRegex, "[a-z]*a[a-z]{2000}"},
      {Kind::kRegex, "a{2147483647}"},
      {Kind::kRegex, "a{99999999999999999999}"},
      {Kind::kRegex, Repeated("(", 60) + "a" + Repeated("{1,9})", 60)},
      {Kind::kRegex, Repeated("(", 5000)},
      {Kind::kRegex, Repeated("a|", 8000)},
      {Kind::kRegex, Repeated("[", 50)},
      {Kind::kRegex, "\\"},
      {Kind::kRegex, "(?<=a)b"},
      {Kind::kEbnf, chain},
      {Kind::kEbnf, "root ::= root root root | \"a\" | \"\""},
      {Kind::kEbnf, "root ::= root"},
      {Kind::kEbnf, "root ::= \"a"},
      {Kind::kEbnf, "root ::= a\na ::= b\nb ::= a"},
      {Kind::kEbnf, "root ::= \"a\"{1,1000000000}"},
      {Kind::kEbnf, "root ::= ([a-z]{1,500}){1,500} ([a-z]{1,500}){1,500}"},
      {Kind::kJsonSchema, R"({"$ref": "#"})"},
      {Kind::kJsonSchema, R"({"$ref": "#/nowhere"})"},
      {Kind::kJsonSchema,
       R"({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})"},
      {Kind::kJsonSchema, doubling},
      {Kind::kJsonSchema, LargeSchema()},
      {Kind::kJsonSchema, all_of + "]}"},
      {Kind::kJsonSchema, R"({"type": "string", "minLength": 100000000, "maxLength": 2000000000})"},
      {Kind::kJsonSchema,
       R"({"type": "array", "items": {"type": "array", "minItems": 100000, "items": {"type": "array", "minItems": 100000}}})"},
      {Kind::kJsonSchema,
       R"({"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807})"},
      {Kind::kJsonSchema, Repeated(R"({"anyOf":[)", 2000)},
      {Kind::kJsonSchema, "{\"enum\": [\"" + std::string(kLargestSpecBytes, 'x') + "\"]}"},
      {Kind::kStructuralTag,
       R"({"type":"structural_tag","format":{"type":"regex","pattern":"((a{1,1000}){1,1000}){1,1000}"}})"},
      {Kind::kStructuralTag, R"({"type":"structural_tag","format":{"type":"nothing"}})"},
      {Kind::kStructuralTag, "{}"},
      {Kind::kLark, "start: (\"a\"~1..100000)~1..100000"},
  };
}

// A grammar may be accepted: then it is followed like any other, within its limits.
void Follow(const std::shared_ptr<Grammar>& grammar) {
  const auto mask = Grammar::NewMask(grammar, {});
  std::vector<int32_t> ids;
  for (int i = 0; i < kNumFollowed; ++i) {
    const auto allowed = AllowedIds(*mask, ids);
    if (!allowed.ok() || allowed->empty() || allowed->contains(kEosId)) return;
    ids.push_back(*allowed->rbegin());
  }
}

TEST(HostileGrammarTest, IsAnsweredSoonAndHurtsNobody) {
  GrammarCompilerOptions options = TestOptions();
  GrammarLimits& limits = options.host.limits;
  limits.compile_cpu_ms = 300;
  // Ten times the processor time that a compilation and the masks of a text may take, for machines
  // with other work.
  const absl::Duration max_time = absl::Milliseconds(
      10 * (limits.compile_cpu_ms + limits.text_cpu_ms + kNumFollowed * limits.token_cpu_ms));
  const auto compiler = NewCompiler(options);
  const auto serves = [&] {
    ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler, Kind::kRegex, "ab"));
    const auto mask = Grammar::NewMask(grammar, {});
    EXPECT_TRUE(Allowed(*mask, {}).contains(2 + 'a'));
  };
  serves();
  const int64_t memory_bytes = AnonymousMemoryBytes();
  for (const auto& [kind, text] : HostileSpecs()) {
    SCOPED_TRACE(text.substr(0, 100));
    const absl::Time begun_at = absl::Now();
    const auto grammar = CompileWith(*compiler, kind, text);
    if (grammar.ok()) {
      Follow(*grammar);
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(grammar.status())) << grammar.status();
      EXPECT_LE(grammar.status().message().size(), 400u);
      EXPECT_TRUE(std::string(grammar.status().message()).starts_with("field")) << grammar.status();
    }
    EXPECT_LT(absl::Now() - begun_at, max_time);
    serves();
  }
  EXPECT_LT(AnonymousMemoryBytes() - memory_bytes, kMaxGrowthBytes);
}

constexpr char kSlow[] = "root ::= ([a-z]{1,500}){1,500} ([a-z]{1,500}){1,500}";
// Every token can be read in more ways than the one before.
constexpr char kAmbiguous[] = "root ::= s\ns ::= s s | \"a\"";

TEST(HostileGrammarTest, ACompilationHasItsLimits) {
  const auto expect_refused = [](const GrammarLimits& limits, Kind kind, const std::string& text,
                                 const char* message) {
    GrammarCompilerOptions options = TestOptions();
    options.host.limits = limits;
    EXPECT_ERROR(CompileWith(*NewCompiler(options), kind, text), kInvalidArgument, message);
  };
  expect_refused({.compile_cpu_ms = 60}, Kind::kJsonSchema, LargeSchema(),
                 "field: it takes too long to compile");
  // A rehearsal finds slow masks.
  expect_refused({.rehearsed_mask_cpu_ms = 1}, Kind::kEbnf, kSlow,
                 "field: it takes too long to match");
  expect_refused({.compiled_bytes = 1 << 10}, Kind::kRegex, "[a-z]{1,400}",
                 "field: it needs too much memory");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return;  // their allocators do not come back without memory
#endif
  expect_refused({.compile_cpu_ms = 60'000, .memory_bytes = 4 << 20}, Kind::kJsonSchema,
                 LargeSchema(), "memory");
}

// One mask that takes too long ends the process; the text that asked for it fails, and the others
// do not notice. The second time, the grammar is refused for a while.
TEST(HostileGrammarTest, AMaskHasItsTime) {
  GrammarCompilerOptions options = TestOptions();
  options.host.limits.rehearsed_mask_cpu_ms = 60'000;
  options.host.limits.compile_cpu_ms = 60'000;
  options.host.limits.mask_cpu_ms = 8;
  const auto compiler = NewCompiler(options);
  ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler, Kind::kEbnf, kSlow));
  ASSERT_OK_AND_ASSIGN(const auto other, CompileWith(*compiler, Kind::kRegex, "[ab]*"));
  const auto other_mask = Grammar::NewMask(other, {});
  EXPECT_OK(AllowedIds(*other_mask, {2 + 'a'}));
  const std::vector<int32_t> ids(400, 2 + 'q');
  for (int i = 0; i < GrammarStrikes::kMaxStrikes; ++i) {
    EXPECT_OK(CompileWith(*compiler, Kind::kEbnf, kSlow));
    EXPECT_ERROR(AllowedIds(*Grammar::NewMask(grammar, {}), ids), kInvalidArgument,
                 "structured output: it takes too long to match");
    EXPECT_OK(AllowedIds(*other_mask, {2 + 'a', 2 + 'b'}));
  }
  EXPECT_ERROR(CompileWith(*compiler, Kind::kEbnf, kSlow), kInvalidArgument,
               "it ended the grammar process 2 times and is refused for ");
  EXPECT_OK(CompileWith(*compiler, Kind::kRegex, "[ab]*"));
}

// Masks that are each within their limit add up, and the text fails. Texts of other grammars take
// turns with it.
TEST(HostileGrammarTest, ATextHasItsTime) {
  GrammarCompilerOptions options = TestOptions();
  options.host.limits.text_cpu_ms = 100;
  options.host.limits.token_cpu_ms = 0;
  const auto compiler = NewCompiler(options);
  ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler, Kind::kEbnf, kAmbiguous));
  const auto mask = Grammar::NewMask(grammar, {});
  std::vector<int32_t> ids;
  absl::Status status;
  while (status.ok() && ids.size() < 5000) {
    status = AllowedIds(*mask, ids).status();
    ids.push_back(2 + 'a');
  }
  EXPECT_ERROR(status, kInvalidArgument,
               "structured output: it takes too long to match: the masks of ");
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 100 ms"));
  // Nothing has ended, so the grammar may be tried again, and fails again.
  EXPECT_OK(CompileWith(*compiler, Kind::kEbnf, kAmbiguous));
}

}  // namespace
}  // namespace taopd::testing
