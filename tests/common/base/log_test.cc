#include "common/base/log.h"

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(Log, FieldsAreKeyValuePairs) {
  EXPECT_EQ(
      FormatLogLine("step done", {{"step", 12}, {"loss", 0.5}, {"ok", true}, {"name", "a/b"}}),
      "step done step=12 loss=0.5 ok=true name=a/b");
}

TEST(Log, ClientTextCannotForgeALine) {
  EXPECT_EQ(FormatLogLine("bad", {{"text", "a\nERROR b=\"c\\"}}), R"(bad text="a\nERROR b=\"c\\")");
  EXPECT_EQ(FormatLogLine("bad", {{"text", std::string("\x01\xff")}}), R"(bad text="\x01\xff")");
  EXPECT_EQ(FormatLogLine("bad", {{"text", ""}}), R"(bad text="")");
}

TEST(Log, UnknownLevelIsRefused) {
  EXPECT_ERROR(SetLogLevel("loud"), kInvalidArgument, "loud");
  EXPECT_OK(SetLogLevel("info"));
}

}  // namespace
}  // namespace taopd::testing
