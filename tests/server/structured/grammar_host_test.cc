// Tests of the process of taopd-grammar: its sandbox, its restart, and how the host handles broken
// or wrong programs.
#include "server/structured/grammar_host.h"

#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/server/structured/grammar_text.h"
#include "tests/support/process.h"
#include "tests/support/process_usage.h"

namespace taopd::testing {
namespace {

using Kind = GrammarSpec::Kind;

constexpr absl::Duration kDeadline = absl::Seconds(10);

std::vector<pid_t> Children() { return ChildrenOf(::getpid()); }

// Kills the only child and waits until this process has noticed.
void KillChild() {
  // The list of a task whose threads come and go may lack one for a moment.
  std::vector<pid_t> children;
  ASSERT_TRUE(PollUntil(kDeadline, [&] {
    children = Children();
    return !children.empty();
  }));
  ASSERT_EQ(children.size(), 1u);
  ASSERT_EQ(::kill(children[0], SIGKILL), 0);
  ASSERT_TRUE(PollUntil(kDeadline, [&] { return ::kill(children[0], 0) != 0; }));
}

// The process of the compiler is the only child.
class GrammarChildTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(CompileWith(*compiler_, Kind::kRegex, "a"));
    if (Children().size() != 1) GTEST_SKIP() << "this system does not list children";
  }

  std::unique_ptr<GrammarCompiler> compiler_ = NewCompiler();
};

TEST_F(GrammarChildTest, KilledAtIdleItIsStartedAgain) {
  ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler_, Kind::kRegex, "[ab]*"));
  for (int i = 0; i < 4; ++i) {
    KillChild();
    // Neither the grammar that was known nor a new one suffers.
    ASSERT_OK(CompileWith(*compiler_, Kind::kRegex, "[ab]*"));
    ASSERT_OK_AND_ASSIGN(const auto allowed, AllowedIds(*Grammar::NewMask(grammar, {}), {2 + 'a'}));
    EXPECT_TRUE(allowed.contains(2 + 'b') && !allowed.contains(2 + 'c'));
    ASSERT_OK(CompileWith(*compiler_, Kind::kRegex, Concat("c{", i + 1, "}")));
  }
}

// Texts continue where they were, and none of their grammars gets a strike.
TEST_F(GrammarChildTest, KilledWhileMasksAreInUseTextsGoOn) {
  ASSERT_OK_AND_ASSIGN(const auto first, CompileWith(*compiler_, Kind::kRegex, "a{7}b"));
  ASSERT_OK_AND_ASSIGN(const auto second, CompileWith(*compiler_, Kind::kJsonSchema, "{}"));
  const auto mask = Grammar::NewMask(first, {2 + '!'}), other = Grammar::NewMask(second, {});
  std::vector<int32_t> ids;
  for (int i = 0; i < 7; ++i) {
    mask->Prepare(ids);
    KillChild();
    ASSERT_OK_AND_ASSIGN(const auto allowed, AllowedIds(*mask, ids));
    EXPECT_TRUE(allowed.contains(2 + 'a') && !allowed.contains(2 + 'b')) << i;
    ASSERT_OK(AllowedIds(*other, {}));
    ids.push_back(2 + 'a');
  }
  EXPECT_EQ(Allowed(*mask, ids), std::set<int32_t>{2 + 'b'});
  ids.push_back(2 + 'b');
  EXPECT_EQ(Allowed(*mask, ids), (std::set<int32_t>{kEosId, 2 + '!'}));
  EXPECT_OK(CompileWith(*compiler_, Kind::kRegex, "a{7}b"));
}

TEST_F(GrammarChildTest, KilledWhileItCompilesTheFormIsCompiledAgain) {
  // The process stands still until it is killed, so the kill hits the compilation.
  const pid_t child = Children().at(0);
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  absl::StatusOr<std::shared_ptr<Grammar>> result = absl::UnknownError("");
  absl::Notification begun, done;
  compiler_->Submit({.spec = {.kind = Kind::kRegex, .text = "[xy]*"},
                     .field = "f",
                     .is_gone = [&] { return begun.Notify(), false; }},
                    [&](auto grammar) {
                      result = std::move(grammar);
                      done.Notify();
                    });
  begun.WaitForNotification();
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  done.WaitForNotification();
  EXPECT_OK(result);
  EXPECT_OK(CompileWith(*compiler_, Kind::kRegex, "[xy]*"));
}

// A process that is stopped for good is ended; work goes on with another one.
TEST_F(GrammarChildTest, AProcessThatStandsStillIsReplaced) {
  GrammarCompilerOptions options = TestOptions();
  options.host.max_silence = options.host.max_compile_wait = absl::Seconds(1);
  compiler_ = NewCompiler(options);
  ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler_, Kind::kRegex, "[ab]*"));
  const auto mask = Grammar::NewMask(grammar, {});
  ASSERT_OK(AllowedIds(*mask, {}));
  ASSERT_EQ(::kill(Children().at(0), SIGSTOP), 0);
  EXPECT_OK(AllowedIds(*mask, {2 + 'a'}));
  ASSERT_EQ(::kill(Children().at(0), SIGSTOP), 0);
  EXPECT_OK(CompileWith(*compiler_, Kind::kRegex, "[cd]*"));
}

// Stop ids beyond any socket's buffer, for many texts whose masks nobody takes: nobody waits.
TEST(GrammarHostTest, NoMessageIsTooLargeForTheSocket) {
  const auto compiler = NewCompiler();
  ASSERT_OK_AND_ASSIGN(const auto grammar, CompileWith(*compiler, Kind::kRegex, "[a-z]*"));
  const std::vector<int32_t> stop_ids(60'000, 2 + '!');
  std::vector<std::shared_ptr<LogitMask>> masks;
  for (int i = 0; i < 100; ++i) {
    masks.push_back(Grammar::NewMask(grammar, stop_ids));
    masks.back()->Prepare({});
  }
  for (const auto& mask : masks) EXPECT_OK(AllowedIds(*mask, {2 + 'q'}));
}

std::string StatusLine(pid_t pid, const std::string& name) {
  std::ifstream file(Concat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":")) return line.substr(name.size() + 2);
  }
  return "";
}

TEST_F(GrammarChildTest, TheProcessHasNeitherDescriptorsNorSecretsNorRights) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);  // without close-on-exec
  ::setenv("TAOPD_TEST_SECRET", "secret", 1);
  compiler_ = NewCompiler();
  ASSERT_OK(CompileWith(*compiler_, Kind::kRegex, "a"));
  ::unsetenv("TAOPD_TEST_SECRET");
  const pid_t pid = Children().at(0);
  EXPECT_EQ(StatusLine(pid, "NoNewPrivs"), "1");
  EXPECT_EQ(StatusLine(pid, "Seccomp"), "2");  // a filter
  for (const char* set : {"CapEff", "CapPrm", "CapInh", "CapAmb"})
    EXPECT_EQ(StatusLine(pid, set), "0000000000000000") << set;
  if (::geteuid() == 0) {
    EXPECT_EQ(StatusLine(pid, "Uid"), "65534\t65534\t65534\t65534");
    EXPECT_EQ(StatusLine(pid, "Gid"), "65534\t65534\t65534\t65534");
    EXPECT_THAT(StatusLine(pid, "Groups"), Not(HasSubstr("0")));
  }
  const std::string limits = ReadFile(Concat("/proc/", pid, "/limits"));
  EXPECT_THAT(limits, HasSubstr("Max open files            0 "));
  EXPECT_THAT(limits, HasSubstr("Max processes             0 "));
  EXPECT_THAT(limits, Not(HasSubstr("Max address space         unlimited")));
  // Every thread has the filter, not only the one that installed it.
  for (const auto& task : std::filesystem::directory_iterator(Concat("/proc/", pid, "/task")))
    EXPECT_EQ(StatusLine(std::stoi(task.path().filename().string()), "Seccomp"), "2");
  std::error_code error;
  size_t num_descriptors = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(Concat("/proc/", pid, "/fd"), error)) {
    const std::string target = std::filesystem::read_symlink(entry.path()).string();
    EXPECT_NE(target, std::filesystem::read_symlink(Concat("/proc/self/fd/", pipe_ends[0])));
    ++num_descriptors;
  }
  if (!error) {
    EXPECT_LE(num_descriptors, 5u);  // the standard ones, the socket, the pipe
    EXPECT_EQ(ReadFile(Concat("/proc/", pid, "/environ")).find("secret"), std::string::npos);
  }
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

// Programs in the place of taopd-grammar. They have the socket as descriptor 3.
class FakeProgramTest : public ::testing::Test {
 protected:
  // Returns the results of two compilations of a grammar with the program.
  std::pair<absl::Status, absl::Status> Use(const std::string& script,
                                            absl::Duration start_wait = absl::Milliseconds(300)) {
    GrammarCompilerOptions options;
    options.host.program = dir_.File("program");
    options.host.max_start_wait = start_wait;
    options.host.max_compile_wait = options.host.max_silence = absl::Milliseconds(300);
    WriteFile(options.host.program, "#!/bin/sh\n" + script);
    ::chmod(options.host.program.c_str(), 0755);
    const auto compiler = NewCompiler(options);
    const absl::Time begun_at = absl::Now();
    const absl::Status first = CompileWith(*compiler, Kind::kRegex, "a").status();
    const absl::Status second = CompileWith(*compiler, Kind::kRegex, "a").status();
    EXPECT_LT(absl::Now() - begun_at, absl::Seconds(30));
    return {first, second};
  }
  static constexpr char kSaysReady[] = "printf '\\005\\0\\0\\0\\002\\0\\0\\0\\0' >&3\n";
  TempDir dir_;
};

TEST_F(FakeProgramTest, WhatDoesNotServeIsUnavailable) {
  const std::string ready = kSaysReady;
  const std::pair<const char*, std::string> scripts[] = {
      {"ends", "exit 1"},
      {"ends when it is ready", ready + "exit 1"},
      {"never reads", "exec sleep 1000"},
      {"never answers", "exec cat <&3 >/dev/null"},
      {"garbage", "head -c 100000 /dev/zero | tr '\\0' 'x' >&3; exec cat <&3 >/dev/null"},
      {"garbage when it is ready",
       ready + "printf '\\003\\0\\0\\0xyz' >&3; exec cat <&3 >/dev/null"},
      {"a huge frame", "printf '\\377\\377\\377\\177' >&3; exec cat <&3 >/dev/null"},
      {"a flood", ready + "while :; do printf '\\001\\0\\0\\0\\011' >&3; done"},
      {"refuses", "printf '\\010\\0\\0\\0\\002\\015\\0\\0\\0bad' >&3; exec cat <&3 >/dev/null"},
  };
  for (const auto& [name, script] : scripts) {
    SCOPED_TRACE(name);
    const auto [first, second] = Use(script);
    EXPECT_ERROR(first, kUnavailable, "field: structured output is not available");
    EXPECT_ERROR(second, kUnavailable, "structured output is not available");
  }
  // A grammar gets a strike if no other one can have held up the process.
  const auto [first, second] = Use(ready + "exec cat <&3 >/dev/null", absl::Seconds(20));
  EXPECT_ERROR(first, kUnavailable, "structured output is not available");
  EXPECT_ERROR(second, kInvalidArgument, "field: it did not finish in time");
  GrammarCompilerOptions options;
  options.host.program = "/nowhere/taopd-grammar";
  EXPECT_ERROR(CompileWith(*NewCompiler(options), Kind::kRegex, "a"), kUnavailable,
               "cannot start /nowhere");
}

}  // namespace
}  // namespace taopd::testing
