#include "trainer/net/server_address.h"

#include <tuple>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(ParseServerAddress, SplitsHostPortAndPath) {
  ASSERT_OK_AND_ASSIGN(const ServerAddress grpc,
                       ParseServerAddress("[::1%lo]:50051", /*tls=*/false, /*is_http=*/false));
  EXPECT_EQ(grpc.Url(), "http://[::1%lo]:50051");
  ASSERT_OK_AND_ASSIGN(const ServerAddress http,
                       ParseServerAddress("[::1]/v1//", /*tls=*/true, /*is_http=*/true));
  EXPECT_EQ(http.Url(), "https://[::1]:443");
  EXPECT_EQ(http.prefix, "/v1");
}

TEST(ParseServerAddress, SaysWhatIsWrong) {
  for (const auto& [text, is_http, problem] : {std::tuple{"a", false, "has no port"},
                                               {"a:0", false, "has no port in [1, 65535]"},
                                               {"a:65536", true, "has no port in [1, 65535]"},
                                               {"a:80 ", true, "has no port in [1, 65535]"},
                                               {":80", false, "has a malformed host"},
                                               {"a/b:80", false, "has a malformed host"},
                                               {"[]:80", true, "has a malformed host"},
                                               {"a/?q", true, "has a malformed path"}}) {
    EXPECT_ERROR(ParseServerAddress(text, /*tls=*/false, is_http), kInvalidArgument, problem);
  }
}

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
