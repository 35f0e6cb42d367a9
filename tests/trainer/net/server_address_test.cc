#include "trainer/net/server_address.h"

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(CheckApiKey, RefusesWhatAHeaderCannotCarry) {
  EXPECT_OK(CheckApiKey(""));
  EXPECT_OK(CheckApiKey("sk-!~0"));
  for (const char* key : {"key ", " key", "a key", "key\n", "key\t", "key\x7f", "k\xc3\xa9y"}) {
    EXPECT_ERROR(CheckApiKey(key), kInvalidArgument,
                 "the API key has a space, a line break or another character that is not "
                 "printable ASCII");
  }
}

}  // namespace
}  // namespace taopd::testing
