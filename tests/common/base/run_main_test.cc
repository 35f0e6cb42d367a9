#include "common/base/run_main.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <thread>

namespace taopd::testing {
namespace {

TEST(RunMainTest, ReturnsWhatTheProgramReturns) {
  EXPECT_EXIT(std::_Exit(RunMain("program", [] { return 65; })), ::testing::ExitedWithCode(65), "");
}

TEST(RunMainTest, ExceptionsBecomeAMessageAndACode) {
  const auto run = [](const std::function<int()>& main) { std::_Exit(RunMain("program", main)); };
  EXPECT_EXIT(run([]() -> int { throw std::runtime_error("a: b"); }), ::testing::ExitedWithCode(70),
              "^program: unexpected error: a: b\n$");
  EXPECT_EXIT(run([]() -> int {
                throw std::runtime_error("no kernel\nException raised from here (most recent)");
              }),
              ::testing::ExitedWithCode(70), "^program: unexpected error: no kernel\n$");
  EXPECT_EXIT(run([]() -> int { throw std::bad_alloc(); }), ::testing::ExitedWithCode(71),
              "^program: out of memory\n$");
  EXPECT_EXIT(run([]() -> int { throw 7; }), ::testing::ExitedWithCode(70), "of an unknown type");
  EXPECT_EXIT(run([]() -> int {
                std::filesystem::recursive_directory_iterator("/nowhere");
                return 0;
              }),
              ::testing::ExitedWithCode(70), "/nowhere");
}

TEST(RunMainTest, ExceptionsOfThreadsDoNotAbort) {
  const auto run = [](void (*work)()) {
    std::_Exit(RunMain("program", [work] {
      std::thread(work).join();
      return 0;
    }));
  };
  EXPECT_EXIT(run([] { throw std::out_of_range("index 3"); }), ::testing::ExitedWithCode(70),
              "^program: unexpected error: index 3\n$");
  EXPECT_EXIT(run([] { throw std::bad_alloc(); }), ::testing::ExitedWithCode(71),
              "^program: out of memory\n$");
}

}  // namespace
}  // namespace taopd::testing
