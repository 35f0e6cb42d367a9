#include "server/net/client_name.h"

#include <gtest/gtest.h>

namespace taopd {
namespace {

TEST(ClientNameTest, ASubscriberHasAnIPv4AddressOrHalfAnIPv6Address) {
  EXPECT_EQ(SubscriberOf("10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(SubscriberOf("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
  EXPECT_EQ(SubscriberOf("2001:db8:1:2:ffff::1"), SubscriberOf("2001:db8:1:2::9"));
  EXPECT_NE(SubscriberOf("2001:db8:1:3::1"), SubscriberOf("2001:db8:1:2::1"));
  EXPECT_EQ(SubscriberOf("::ffff:10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(SubscriberOf("unix:/tmp/socket"), "unix:/tmp/socket");
}

TEST(ClientNameTest, KeysTellProgramsOfOneAddressApart) {
  EXPECT_EQ(ClientName("10.0.0.7", ""), "10.0.0.7");
  EXPECT_NE(ClientName("10.0.0.7", "ab"), ClientName("10.0.0.7", "cd"));
  EXPECT_NE(ClientName("10.0.0.7", "ab"), ClientName("10.0.0.8", "ab"));
  EXPECT_EQ(ClientName("2001:db8:1:2::1", "ab"), ClientName("2001:db8:1:2::9", "ab"));
}

}  // namespace
}  // namespace taopd
