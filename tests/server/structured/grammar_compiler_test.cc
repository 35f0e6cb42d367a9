// The compiler's queue and what it keeps.
#include "server/structured/grammar_compiler.h"

#include <absl/synchronization/notification.h>

#include <atomic>
#include <memory>
#include <thread>

#include "tests/server/structured/grammar_text.h"

namespace taopd::testing {
namespace {

using Kind = GrammarSpec::Kind;

TEST(GrammarCompilerTest, ErrorsNameTheFieldAndTheReason) {
  const auto compiler = NewCompiler();
  EXPECT_ERROR(CompileWith(*compiler, Kind::kRegex, "(a"), kInvalidArgument,
               "field: Regex parsing error at position 3: The parenthesis is not closed.");
  EXPECT_ERROR(CompileWith(*compiler, Kind::kJsonSchema, R"({"type": "foo"})"), kInvalidArgument,
               "field: Unsupported type \"foo\"");
  EXPECT_ERROR(CompileWith(*compiler, Kind::kEbnf, "root ::= x"), kInvalidArgument,
               "Rule \"x\" is not defined");
  EXPECT_ERROR(CompileWith(*compiler, Kind::kJsonSchema, R"({"$ref": "#/x"})"), kInvalidArgument,
               "Cannot find field x");
  // A text that no token of the vocabulary begins.
  EXPECT_ERROR(CompileWith(*compiler, Kind::kEbnf, "root ::= root"), kInvalidArgument, "field: ");
}

TEST(GrammarCompilerTest, GrammarsAreKeptForTheNextRequest) {
  GrammarCompilerOptions options = TestOptions();
  options.max_grammars = 2;
  const auto compiler = NewCompiler(options);
  const auto compile = [&](const std::string& text) {
    const auto grammar = CompileWith(*compiler, Kind::kRegex, text);
    EXPECT_OK(grammar);
    return std::weak_ptr<Grammar>(*grammar);
  };
  const auto a = compile("a"), b = compile("b");
  EXPECT_EQ(compile("a").lock(), a.lock());
  compile("c");  // the one that was used least recently goes
  EXPECT_FALSE(a.expired());
  EXPECT_TRUE(b.expired());
  compile("b");
}

TEST(GrammarCompilerTest, GrammarsInUseAreBounded) {
  GrammarCompilerOptions options = TestOptions();
  options.max_grammars = 3;
  const auto compiler = NewCompiler(options);
  std::vector<std::shared_ptr<Grammar>> used;
  for (const std::string text : {"a", "b", "c"}) {
    const std::string client = "client of " + text;
    used.push_back(*CompileWith(*compiler, Kind::kRegex, text, client));
    EXPECT_ERROR(CompileWith(*compiler, Kind::kRegex, "d", client), kResourceExhausted,
                 "field: the client uses 1 grammars of ");
  }
  EXPECT_ERROR(CompileWith(*compiler, Kind::kRegex, "d"), kResourceExhausted,
               "field: 3 grammars are in use, which is the limit");
  EXPECT_OK(CompileWith(*compiler, Kind::kRegex, "a"));
  // A text under a grammar uses it, however it is held.
  auto mask = Grammar::NewMask(used.back(), {});
  used.pop_back();
  EXPECT_ERROR(CompileWith(*compiler, Kind::kRegex, "d"), kResourceExhausted, "which is the limit");
  mask.reset();
  EXPECT_OK(CompileWith(*compiler, Kind::kRegex, "d"));
}

TEST(GrammarCompilerTest, TheBytesOfGrammarsAreBounded) {
  GrammarCompilerOptions options = TestOptions();
  options.max_compiled_bytes = 1;
  const auto compiler = NewCompiler(options);
  EXPECT_ERROR(CompileWith(*compiler, Kind::kRegex, "a"), kResourceExhausted,
               "field: the grammars in use take 0 bytes, and this one ");
}

TEST(GrammarCompilerTest, WhoeverIsGoneOrLateIsNotWaitedFor) {
  const auto compiler = NewCompiler();
  EXPECT_ERROR(compiler->Compile({.spec = {.kind = Kind::kRegex, .text = "a"},
                                  .field = "f",
                                  .deadline = absl::Now() - absl::Seconds(1)}),
               kDeadlineExceeded, "deadline");
  absl::Notification done;
  absl::StatusOr<std::shared_ptr<Grammar>> result = absl::UnknownError("");
  compiler->Submit(
      {.spec = {.kind = Kind::kRegex, .text = "a"}, .field = "f", .is_gone = [] { return true; }},
      [&](auto grammar) {
        result = std::move(grammar);
        done.Notify();
      });
  done.WaitForNotification();
  EXPECT_ERROR(result, kCancelled, "gone");
}

// The queue is bounded, for one client more narrowly than for all, and the end answers what is
// left.
TEST(GrammarCompilerTest, TheQueueIsBounded) {
  GrammarCompilerOptions options = TestOptions();
  options.max_waiting = 3;
  options.max_client_waiting = 2;
  auto compiler = NewCompiler(options);
  absl::Notification begun, go_on;
  std::atomic<int> num_cancelled = 0, num_done = 0;
  const auto submit = [&](const std::string& client, std::function<bool()> is_gone = nullptr) {
    absl::Status status;
    compiler->Submit({.spec = {.kind = Kind::kRegex, .text = "a"},
                      .field = "f",
                      .client = client,
                      .is_gone = std::move(is_gone)},
                     [&](const auto& grammar) {
                       ++num_done;
                       if (absl::IsCancelled(grammar.status())) ++num_cancelled;
                       if (absl::IsResourceExhausted(grammar.status())) status = grammar.status();
                     });
    return status;
  };
  // Holds the only thread.
  EXPECT_OK(submit("x", [&] {
    begun.Notify();
    go_on.WaitForNotification();
    return true;
  }));
  begun.WaitForNotification();
  const auto late = [] { return true; };
  EXPECT_OK(submit("x", late));
  EXPECT_OK(submit("x", late));
  EXPECT_ERROR(submit("x", late), kResourceExhausted, "2 of this client; the limits are 3 and 2");
  EXPECT_OK(submit("y", late));
  EXPECT_ERROR(submit("z", late), kResourceExhausted, "f: 3 grammars wait");
  std::thread end([&] { compiler.reset(); });
  go_on.Notify();
  end.join();
  EXPECT_EQ(num_done, 6);
  EXPECT_EQ(num_cancelled, 4);
}

TEST(GrammarCompilerTest, ManyThreadsAtOnce) {
  const auto compiler = NewCompiler();
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 6; ++i) {
        const std::string text = Concat("[a-c]{", 1 + (t + i) % 5, "}");
        ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler, Kind::kRegex, text));
        const auto mask = Grammar::NewMask(grammar, {});
        std::vector<int32_t> ids;
        for (int n = 0; n < 1 + (t + i) % 5; ++n) {
          ASSERT_TRUE(Allowed(*mask, ids).contains(2 + 'b'));
          ids.push_back(2 + 'b');
          mask->Prepare(ids);
        }
        ASSERT_EQ(Allowed(*mask, ids), std::set<int32_t>{kEosId});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Masks that nobody takes do not block the others of their grammar.
TEST(GrammarCompilerTest, AMaskThatIsNotTakenBlocksNobody) {
  const auto compiler = NewCompiler();
  ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler, Kind::kRegex, "[a-z]*"));
  std::vector<std::shared_ptr<LogitMask>> idle;
  for (int i = 0; i < 6000; ++i) idle.push_back(Grammar::NewMask(grammar, {}));
  const auto mask = Grammar::NewMask(grammar, {});
  std::vector<int32_t> ids;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(Allowed(*mask, ids).contains(2 + 'q'));
    ids.push_back(2 + 'q');
  }
  idle.clear();
  EXPECT_OK(AllowedIds(*mask, ids));
}

TEST(GrammarCompilerTest, AModelWithoutAnEndIsRefused) {
  GrammarCompiler compiler(SmallVocabulary(), {}, TestOptions());
  EXPECT_ERROR(CompileWith(compiler, Kind::kRegex, "a"), kFailedPrecondition, "end-of-sequence id");
}

}  // namespace
}  // namespace taopd::testing
