#include "server/net/client_name.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

namespace taopd {

std::string SubscriberOf(const std::string& address) {
  in6_addr bytes{};
  if (::inet_pton(AF_INET6, address.c_str(), &bytes) != 1) return address;
  char text[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&bytes)) {
    ::inet_ntop(AF_INET, bytes.s6_addr + 12, text, sizeof(text));
  } else {
    std::memset(bytes.s6_addr + 8, 0, 8);
    ::inet_ntop(AF_INET6, &bytes, text, sizeof(text));
  }
  return text;
}

std::string ClientName(const std::string& address, std::string_view key_name) {
  std::string name = SubscriberOf(address);
  if (!key_name.empty()) name.append(" key ").append(key_name);
  return name;
}

}  // namespace taopd
