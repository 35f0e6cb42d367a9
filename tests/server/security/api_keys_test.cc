#include "server/security/api_keys.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(ApiKeysTest, NoKeyIsAskedForUnlessThereIsOne) {
  const ApiKeys keys({}, "");
  EXPECT_FALSE(keys.required());
  EXPECT_TRUE(keys.Accepts(""));
}

TEST(ApiKeysTest, AcceptsEachKeyAndNothingElse) {
  const ApiKeys keys({"first", "second"}, "");
  EXPECT_TRUE(keys.required());
  for (const char* good : {"Bearer first", "bearer second", "BEARER first"}) {
    EXPECT_TRUE(keys.Accepts(good)) << good;
  }
  for (const char* bad :
       {"", "Bearer", "Bearer ", "first", "Basic first", "Bearer firs", "Bearer firstt",
        "Bearer First", "Bearer  first", "Bearer first ", "Bearer first second", "Bearerfirst"}) {
    EXPECT_FALSE(keys.Accepts(bad)) << bad;
  }
}

TEST(ApiKeysTest, NamesTellKeysApartAndDoNotTellThem) {
  const ApiKeys keys({"first", "second"}, "");
  EXPECT_EQ(keys.NameOf("Bearer first"), keys.NameOf("bearer first"));
  EXPECT_NE(keys.NameOf("Bearer first"), keys.NameOf("Bearer second"));
  EXPECT_EQ(keys.NameOf("Bearer first").size(), 16u);
  EXPECT_EQ(ApiKeys({}, "").NameOf("Bearer first"), "");
}

TEST(ApiKeysTest, FileIsReadAgainAndBadFilesAreNot) {
  TempDir dir;
  const std::string path = dir.File("keys");
  WriteFile(path, "# a comment\nold\r\n\nother\n");
  ApiKeys keys({"fixed"}, path);
  EXPECT_TRUE(keys.required());
  EXPECT_FALSE(keys.Accepts("Bearer old"));  // not read yet: closed, not open
  ASSERT_OK(keys.Reload());
  for (const char* good : {"Bearer old", "Bearer other", "Bearer fixed"}) {
    EXPECT_TRUE(keys.Accepts(good)) << good;
  }
  EXPECT_FALSE(keys.Accepts("Bearer # a comment"));
  WriteFile(path, "new\n");
  ASSERT_OK(keys.Reload());
  EXPECT_TRUE(keys.Accepts("Bearer new"));
  EXPECT_FALSE(keys.Accepts("Bearer old"));
  for (const char* bad : {"", "# nothing\n", "two words\n", "good\nb\x01\n"}) {
    WriteFile(path, bad);
    EXPECT_ERROR(keys.Reload(), kInvalidArgument, path);
    EXPECT_EQ(std::string(keys.Reload().message()).find("words"), std::string::npos);
  }
  std::filesystem::remove(path);
  EXPECT_FALSE(keys.Reload().ok());
  EXPECT_TRUE(keys.Accepts("Bearer new"));
}

}  // namespace
}  // namespace taopd::testing
