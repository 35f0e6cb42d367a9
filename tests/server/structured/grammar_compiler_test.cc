// The compiler's queue, what it keeps, and its program.
#include "server/structured/grammar_compiler.h"

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "tests/server/structured/grammar_text.h"

namespace taopd::testing {
namespace {

using Kind = GrammarSpec::Kind;

// The pids of processes whose parent is `parent`.
std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::ifstream file(Concat("/proc/", parent, "/task/", parent, "/children"));
  std::vector<pid_t> pids;
  for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
  return pids;
}

std::vector<pid_t> Descendants() {
  std::vector<pid_t> all;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "children");
    for (pid_t pid = 0; file >> pid;) all.push_back(pid);
  }
  return all;
}

TEST(GrammarCompilerTest, ErrorsNameTheFieldAndTheReason) {
  const auto compiler = NewCompiler();
  EXPECT_ERROR(CompileWith(*compiler, Kind::kRegex, "(a"), absl::StatusCode::kInvalidArgument,
               "field: Regex parsing error at position 3: The parenthesis is not closed.");
  EXPECT_ERROR(CompileWith(*compiler, Kind::kJsonSchema, R"({"type": "foo"})"),
               absl::StatusCode::kInvalidArgument, "field: Unsupported type \"foo\"");
  EXPECT_ERROR(CompileWith(*compiler, Kind::kEbnf, "root ::= x"),
               absl::StatusCode::kInvalidArgument, "Rule \"x\" is not defined");
  EXPECT_ERROR(CompileWith(*compiler, Kind::kJsonSchema, R"({"$ref": "#/x"})"),
               absl::StatusCode::kInvalidArgument, "Cannot find field x");
  // A text that no token of the vocabulary begins.
  EXPECT_ERROR(CompileWith(*compiler, Kind::kEbnf, "root ::= root"),
               absl::StatusCode::kInvalidArgument, "field: ");
}

TEST(GrammarCompilerTest, GrammarsAreKeptForTheNextRequest) {
  GrammarCompilerOptions options = TestOptions();
  options.max_kept = 2;
  const auto compiler = NewCompiler(options);
  const auto compile = [&](const std::string& text) {
    const auto grammar = CompileWith(*compiler, Kind::kRegex, text);
    EXPECT_OK(grammar);
    return *grammar;
  };
  const auto a = compile("a"), b = compile("b");
  EXPECT_EQ(compile("a"), a);
  compile("c");  // the one that was used least recently goes
  EXPECT_EQ(compile("a"), a);
  EXPECT_NE(compile("b"), b);
}

TEST(GrammarCompilerTest, GrammarsInUseAreBoundedAndThoseThatAreKeptMakeRoom) {
  GrammarCompilerOptions options = TestOptions();
  options.max_kept = 2;
  options.max_grammars = 3;
  options.max_client_share = 1.0;
  const auto compiler = NewCompiler(options);
  std::vector<std::shared_ptr<Grammar>> used;
  for (const char* text : {"a", "b", "c"}) {
    used.push_back(*CompileWith(*compiler, Kind::kRegex, text));
  }
  EXPECT_ERROR(CompileWith(*compiler, Kind::kRegex, "d"), absl::StatusCode::kResourceExhausted,
               "field: 3 grammars are in use, which is the limit");
  used.pop_back();
  EXPECT_OK(CompileWith(*compiler, Kind::kRegex, "d"));
}

// Compiles a client's regular expression, with a compiler that has four grammars.
auto CompilingOfFour() {
  GrammarCompilerOptions options = TestOptions();
  options.max_grammars = 4;
  return [compiler = std::shared_ptr<GrammarCompiler>(NewCompiler(options))](
             const std::string& client, const std::string& text) {
    return compiler->Compile(
        {.spec = {.kind = Kind::kRegex, .text = text}, .field = "f", .client = client});
  };
}

TEST(GrammarCompilerTest, NoClientUsesMoreThanItsShareOfTheGrammars) {
  const auto compile = CompilingOfFour();
  ASSERT_OK_AND_ASSIGN(auto first, compile("greedy", "a"));
  ASSERT_OK_AND_ASSIGN(const auto second, compile("greedy", "b"));
  EXPECT_ERROR(
      compile("greedy", "c"), absl::StatusCode::kResourceExhausted,
      "f: this client uses 2 grammars: one more exceeds its share of 4, of which 2 are free");
  // What it has it may use again, and others find room.
  EXPECT_OK(compile("greedy", "a"));
  ASSERT_OK_AND_ASSIGN(const auto other, compile("other", "c"));
  EXPECT_OK(compile("third", "a"));
  // A text under a grammar uses it, however it is held.
  auto mask = Grammar::NewMask(first, {});
  first.reset();
  EXPECT_ERROR(compile("greedy", "d"), absl::StatusCode::kResourceExhausted, "uses 2 grammars");
  mask.reset();
  EXPECT_ERROR(compile("greedy", "d"), absl::StatusCode::kResourceExhausted,
               "uses 1 grammars: one more exceeds its share of 4, of which 2 are free");
}

TEST(GrammarCompilerTest, WhatOthersHadCompiledCountsForWhoeverUsesIt) {
  const auto compile = CompilingOfFour();
  for (const char* text : {"a", "b", "c"}) EXPECT_OK(compile("other", text));
  ASSERT_OK_AND_ASSIGN(const auto first, compile("greedy", "a"));
  ASSERT_OK_AND_ASSIGN(const auto second, compile("greedy", "b"));
  EXPECT_ERROR(compile("greedy", "c"), absl::StatusCode::kResourceExhausted, "uses 2 grammars");
}

TEST(GrammarCompilerTest, GrammarsThatAreOnlyKeptEndForOnesThatAreUsed) {
  GrammarCompilerOptions options = TestOptions();
  options.max_grammars = 2;
  const auto compiler = NewCompiler(options);
  EXPECT_OK(CompileWith(*compiler, Kind::kRegex, "a"));
  const std::vector<pid_t> programs = Descendants();
  if (programs.size() != 1) GTEST_SKIP() << "this system does not list children";
  EXPECT_OK(CompileWith(*compiler, Kind::kRegex, "b"));
  EXPECT_EQ(ChildrenOf(programs[0]).size(), 2u);
  ASSERT_OK_AND_ASSIGN(const auto c, CompileWith(*compiler, Kind::kRegex, "c"));
  while (ChildrenOf(programs[0]).size() > 2) std::this_thread::yield();
}

TEST(GrammarCompilerTest, AClientOfManyGrammarsEndsItsOwnFirst) {
  GrammarCompilerOptions options = TestOptions();
  options.max_kept = 3;
  const auto compiler = NewCompiler(options);
  const auto compile = [&](const std::string& client, const std::string& text) {
    return *compiler->Compile(
        {.spec = {.kind = Kind::kRegex, .text = text}, .field = "f", .client = client});
  };
  const auto modest = compile("modest", "a");
  for (const char* text : {"b", "c", "d", "e"}) compile("greedy", text);
  EXPECT_EQ(compile("modest", "a"), modest);
}

TEST(GrammarCompilerTest, WhoeverIsGoneOrLateIsNotWaitedFor) {
  const auto compiler = NewCompiler();
  EXPECT_ERROR(compiler->Compile({.spec = {.kind = Kind::kRegex, .text = "a"},
                                  .field = "f",
                                  .deadline = absl::Now() - absl::Seconds(1)}),
               absl::StatusCode::kDeadlineExceeded, "deadline");
  absl::Notification done;
  absl::StatusOr<std::shared_ptr<Grammar>> result = absl::UnknownError("");
  compiler->Submit(
      {.spec = {.kind = Kind::kRegex, .text = "a"}, .field = "f", .is_gone = [] { return true; }},
      [&](auto grammar) {
        result = std::move(grammar);
        done.Notify();
      });
  done.WaitForNotification();
  EXPECT_ERROR(result, absl::StatusCode::kCancelled, "gone");
}

// The queue is bounded, for one client more narrowly than for all, and the end answers what is left.
TEST(GrammarCompilerTest, TheQueueIsBounded) {
  GrammarCompilerOptions options = TestOptions();
  options.num_threads = 1;
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
  EXPECT_ERROR(submit("x", late), absl::StatusCode::kResourceExhausted,
               "2 of this client; the limits are 3 and 2");
  EXPECT_OK(submit("y", late));
  EXPECT_ERROR(submit("z", late), absl::StatusCode::kResourceExhausted, "f: 3 grammars wait");
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
        const auto grammar = CompileWith(*compiler, Kind::kRegex, text);
        ASSERT_OK(grammar);
        const auto mask = Grammar::NewMask(*grammar, {});
        std::vector<int32_t> ids;
        for (int n = 0; n < 1 + (t + i) % 5; ++n) {
          ASSERT_OK_AND_ASSIGN(const std::set<int32_t> allowed, AllowedIds(*mask, ids));
          ASSERT_TRUE(allowed.contains(2 + 'b'));
          ids.push_back(2 + 'b');
          mask->Prepare(ids);
        }
        ASSERT_OK_AND_ASSIGN(const std::set<int32_t> end, AllowedIds(*mask, ids));
        ASSERT_EQ(end, std::set<int32_t>{kEosId});
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
    ASSERT_OK_AND_ASSIGN(const std::set<int32_t> allowed, AllowedIds(*mask, ids));
    ASSERT_TRUE(allowed.contains(2 + 'q'));
    ids.push_back(2 + 'q');
  }
  idle.clear();
  EXPECT_OK(AllowedIds(*mask, ids));
}

TEST(GrammarCompilerTest, WithoutTheProgramThereIsNoStructuredOutput) {
  GrammarCompilerOptions options;
  options.program = "/nowhere/taopd-grammar";
  const auto compiler = NewCompiler(options);
  EXPECT_ERROR(CompileWith(*compiler, Kind::kRegex, "a"), absl::StatusCode::kUnavailable,
               "cannot start /nowhere");
  options.program = "/bin/false";
  EXPECT_ERROR(CompileWith(*NewCompiler(options), Kind::kRegex, "a"),
               absl::StatusCode::kUnavailable, "structured output is not available");
}

TEST(GrammarCompilerTest, AModelWithoutAnEndIsRefused) {
  GrammarCompiler compiler(SmallVocabulary(), {}, TestOptions());
  EXPECT_ERROR(CompileWith(compiler, Kind::kRegex, "a"), absl::StatusCode::kFailedPrecondition,
               "end-of-sequence id");
}

// What a process has of another one's that starts it.
TEST(GrammarCompilerTest, TheProgramHasNeitherDescriptorsNorSecrets) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);  // without close-on-exec
  ::setenv("TAOPD_TEST_SECRET", "secret", 1);
  const auto compiler = NewCompiler();
  ASSERT_OK(CompileWith(*compiler, Kind::kRegex, "a"));
  ::unsetenv("TAOPD_TEST_SECRET");
  const std::vector<pid_t> programs = Descendants();
  if (programs.size() != 1) GTEST_SKIP() << "this system does not list children";
  for (pid_t pid : {programs[0], ChildrenOf(programs[0]).at(0)}) {
    const std::string place = Concat("/proc/", pid);
    size_t num_descriptors = 0;
    for (const auto& entry : std::filesystem::directory_iterator(place + "/fd")) {
      const std::string target = std::filesystem::read_symlink(entry.path()).string();
      EXPECT_NE(target, std::filesystem::read_symlink(Concat("/proc/self/fd/", pipe_ends[0])));
      ++num_descriptors;
    }
    EXPECT_LE(num_descriptors, 5u);  // the standard ones, the socket, and /dev/null
    EXPECT_EQ(ReadFile(place + "/environ").find("secret"), std::string::npos);
  }
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

TEST(GrammarCompilerTest, AProgramThatEndsIsStartedAgainAndAGrammarThatEndsFailsAlone) {
  const auto compiler = NewCompiler();
  ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler, Kind::kRegex, "[ab]*"));
  const std::vector<pid_t> programs = Descendants();
  if (programs.size() != 1) GTEST_SKIP() << "this system does not list children";
  const std::vector<pid_t> processes = ChildrenOf(programs[0]);
  ASSERT_EQ(processes.size(), 1u);
  ASSERT_OK_AND_ASSIGN(const auto other, CompileWith(*compiler, Kind::kRegex, "[cd]*"));
  const auto mask = Grammar::NewMask(grammar, {}), other_mask = Grammar::NewMask(other, {});
  ASSERT_OK(AllowedIds(*mask, {}));
  ASSERT_EQ(::kill(processes[0], SIGKILL), 0);
  EXPECT_ERROR(AllowedIds(*mask, {2 + 'a'}), absl::StatusCode::kInvalidArgument,
               "cannot be followed");
  EXPECT_FALSE(grammar->is_alive());
  EXPECT_OK(AllowedIds(*other_mask, {2 + 'c'}));
  // The same spec is not tried again.
  EXPECT_ERROR(CompileWith(*compiler, Kind::kRegex, "[ab]*"), absl::StatusCode::kInvalidArgument,
               "has ended");
  ASSERT_EQ(::kill(programs[0], SIGKILL), 0);
  EXPECT_OK(CompileWith(*compiler, Kind::kRegex, "[ef]*"));
  EXPECT_OK(AllowedIds(*other_mask, {2 + 'c', 2 + 'd'}));
}

}  // namespace
}  // namespace taopd::testing
