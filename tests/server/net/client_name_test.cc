#include "server/net/client_name.h"

#include <gtest/gtest.h>

namespace taopd::testing {
namespace {

TEST(ClientNameTest, ASubscriberHasAnIPv4AddressOrHalfAnIPv6Address) {
  EXPECT_EQ(SubscriberOf("10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(SubscriberOf("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
  EXPECT_EQ(SubscriberOf("2001:db8:1:2:ffff::1"), SubscriberOf("2001:db8:1:2::9"));
  EXPECT_NE(SubscriberOf("2001:db8:1:3::1"), SubscriberOf("2001:db8:1:2::1"));
  EXPECT_EQ(SubscriberOf("::ffff:10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(SubscriberOf("unix:/tmp/socket"), "unix:/tmp/socket");
}

TEST(ClientNameTest, AClientIsItsKeyAndWithoutKeysItsAddress) {
  EXPECT_EQ(ClientName("10.0.0.7", ""), "10.0.0.7");
  EXPECT_NE(ClientName("10.0.0.7", "ab"), ClientName("10.0.0.7", "cd"));
  EXPECT_EQ(ClientName("10.0.0.7", "ab"), ClientName("10.0.0.8", "ab"));
  EXPECT_NE(ClientName("10.0.0.7", "ab"), ClientName("ab", ""));
}

std::string Address(const TrustedProxies& proxies, const std::string& peer,
                    const std::vector<std::string_view>& hops, bool forwarded = false) {
  return proxies.ClientAddress(peer, [&](std::string_view name) {
    return forwarded == (name == "forwarded") ? hops : std::vector<std::string_view>();
  });
}

TEST(TrustedProxiesTest, HopsAreReadFromTheRightAndOnlyThroughTrustedOnes) {
  TrustedProxies proxies;
  ASSERT_TRUE(proxies.Add({"10.0.0.0/8", "fd00::/8", "192.0.2.1"}).ok());
  EXPECT_EQ(Address(proxies, "10.1.2.3", {"203.0.113.9"}), "203.0.113.9");
  EXPECT_EQ(Address(proxies, "::ffff:10.1.2.3", {"203.0.113.9"}), "203.0.113.9");
  // Nobody else's word is taken.
  EXPECT_EQ(Address(proxies, "11.1.2.3", {"203.0.113.9"}), "11.1.2.3");
  EXPECT_EQ(Address(proxies, "192.0.2.2", {"203.0.113.9"}), "192.0.2.2");
  // The addresses that the client has written stand on the left of the one that a proxy has seen.
  EXPECT_EQ(Address(proxies, "10.1.2.3", {"1.1.1.1, 203.0.113.9"}), "203.0.113.9");
  EXPECT_EQ(Address(proxies, "10.1.2.3", {"1.1.1.1", "203.0.113.9"}), "203.0.113.9");
  EXPECT_EQ(Address(proxies, "10.1.2.3", {"203.0.113.9,192.0.2.1 , fd00::7"}), "203.0.113.9");
  EXPECT_EQ(Address(proxies, "10.1.2.3", {"10.0.0.1, 10.0.0.2"}), "10.0.0.1");
  EXPECT_EQ(Address(proxies, "10.1.2.3", {"[2001:db8::1]:443"}), "2001:db8::1");
  EXPECT_EQ(Address(proxies, "10.1.2.3", {"203.0.113.9:5000"}), "203.0.113.9");
  EXPECT_EQ(Address(proxies, "10.1.2.3", {}), "10.1.2.3");
  EXPECT_EQ(Address(proxies, "10.1.2.3", {"for=1.1.1.1, For=\"[2001:db8::1]:80\";proto=https"},
                    /*forwarded=*/true),
            "2001:db8::1");
  EXPECT_EQ(proxies.num_malformed(), 0u);
}

TEST(TrustedProxiesTest, WhatIsNoAddressEndsTheReadingAndIsCounted) {
  TrustedProxies proxies;
  ASSERT_TRUE(proxies.Add({"10.0.0.0/8"}).ok());
  uint64_t num_malformed = 0;
  for (const char* value : {"", "unknown", "1.1.1.1, _hidden", "300.1.1.1", "[::1", "1.1.1.1, ",
                            "10.0.0.1.example", "::1%eth0"}) {
    EXPECT_EQ(Address(proxies, "10.1.2.3", {value}), "10.1.2.3") << value;
    EXPECT_EQ(proxies.num_malformed(), ++num_malformed) << value;
  }
  EXPECT_EQ(Address(proxies, "10.1.2.3", {"nonsense, 10.0.0.9"}), "10.0.0.9");
  EXPECT_EQ(Address(proxies, "10.1.2.3", {"proto=https"}, /*forwarded=*/true), "10.1.2.3");
  EXPECT_EQ(proxies.num_malformed(), num_malformed + 2);
  // Nobody counts what strangers write.
  EXPECT_EQ(Address(proxies, "8.8.8.8", {"nonsense"}), "8.8.8.8");
  EXPECT_EQ(proxies.num_malformed(), num_malformed + 2);
}

TEST(TrustedProxiesTest, RefusesWhatIsNoNetwork) {
  for (const char* network : {"", "proxy", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "fd00::/129",
                              "10.0.0.1/8", "fd00::1/8", "10.0.0/8"}) {
    TrustedProxies proxies;
    EXPECT_FALSE(proxies.Add({"127.0.0.1", network}).ok()) << network;
  }
  TrustedProxies proxies;
  EXPECT_TRUE(proxies.Add({"0.0.0.0/0", "::1/128", "10.0.0.7/32"}).ok());
  EXPECT_EQ(Address(proxies, "8.8.8.8", {"1.1.1.1"}), "1.1.1.1");
  EXPECT_EQ(Address(proxies, "2001:db8::1", {"1.1.1.1"}), "2001:db8::1");
}

}  // namespace
}  // namespace taopd::testing
