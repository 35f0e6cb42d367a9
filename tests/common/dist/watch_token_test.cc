#include "common/dist/watch_token.h"

#include <gtest/gtest.h>

namespace taopd::testing {
namespace {

// RFC 4231, test cases 2 and 6: a short key, and one longer than a block.
TEST(WatchToken, IsHmacSha256) {
  EXPECT_EQ(WatchToken("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(WatchToken(std::string(131, '\xaa'),
                       "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(WatchToken, NoncesAreFresh) {
  EXPECT_EQ(NewWatchNonce().size(), 32U);
  EXPECT_NE(NewWatchNonce(), NewWatchNonce());
}

}  // namespace
}  // namespace taopd::testing
