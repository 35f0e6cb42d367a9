#include "server/net/client_name.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <optional>

namespace taopd {
namespace {

constexpr int kAddressBits = 128;
// Bits before the IPv4 address in an IPv6 address that contains one.
constexpr int kMappedBits = 96;

// Returns the 16 bytes of an address, or nullopt if the text is not an address.
std::optional<std::string> BytesOf(const std::string& address) {
  std::string bytes(sizeof(in6_addr), '\0');
  if (::inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1) return bytes;
  bytes[10] = bytes[11] = '\xff';
  if (::inet_pton(AF_INET, address.c_str(), bytes.data() + 12) == 1) return bytes;
  return std::nullopt;
}

bool BitOf(const std::string& bytes, int bit) {
  return (static_cast<unsigned char>(bytes[static_cast<size_t>(bit / 8)]) >> (7 - bit % 8)) & 1;
}

// Returns the address of a hop in X-Forwarded-For, with or without a port: "10.0.0.7:80",
// "[fd00::1]:80".
std::optional<std::string> AddressOfHop(absl::string_view hop) {
  std::string address(hop);
  if (address.starts_with('[')) {
    const size_t end = address.find(']');
    if (end == std::string::npos) return std::nullopt;
    address = address.substr(1, end - 1);
  } else if (const size_t colon = address.find(':');
             colon != std::string::npos && colon == address.rfind(':')) {
    address.resize(colon);
  }
  if (!BytesOf(address)) return std::nullopt;
  return address;
}

// Returns the "for" of one element of a Forwarded header.
std::optional<absl::string_view> ForOf(absl::string_view element) {
  for (absl::string_view pair : absl::StrSplit(element, ';')) {
    pair = absl::StripAsciiWhitespace(pair);
    if (!absl::StartsWithIgnoreCase(pair, "for=")) continue;
    pair.remove_prefix(4);
    if (pair.size() >= 2 && pair.front() == '"' && pair.back() == '"')
      pair = pair.substr(1, pair.size() - 2);
    return pair;
  }
  return std::nullopt;
}

}  // namespace

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
  return key_name.empty() ? SubscriberOf(address) : "key " + std::string(key_name);
}

absl::Status TrustedProxies::Add(const std::vector<std::string>& networks) {
  for (const std::string& text : networks) {
    const size_t slash = text.find('/');
    const std::string address = text.substr(0, slash);
    const std::optional<std::string> bytes = BytesOf(address);
    const bool is_ipv4 = address.find(':') == std::string::npos;
    int bits = is_ipv4 ? kAddressBits - kMappedBits : kAddressBits;
    const int max_bits = bits;
    const bool has_bits =
        slash == std::string::npos || absl::SimpleAtoi(text.substr(slash + 1), &bits);
    if (!bytes || !has_bits || bits < 0 || bits > max_bits) {
      return InvalidArgument("trusted_proxies: \"", text,
                             "\" is neither an address nor a range such as 10.0.0.0/8 or fd00::/8");
    }
    bits += is_ipv4 ? kMappedBits : 0;
    for (int bit = bits; bit < kAddressBits; ++bit) {
      if (!BitOf(*bytes, bit)) continue;
      return InvalidArgument("trusted_proxies: \"", text, "\" has bits set after its prefix");
    }
    networks_.push_back({*bytes, bits});
  }
  return absl::OkStatus();
}

bool TrustedProxies::Trusts(const std::string& address) const {
  const std::optional<std::string> bytes = BytesOf(address);
  if (!bytes) return false;
  for (const Network& network : networks_) {
    int bit = 0;
    while (bit < network.prefix_bits && BitOf(*bytes, bit) == BitOf(network.bytes, bit)) ++bit;
    if (bit == network.prefix_bits) return true;
  }
  return false;
}

std::string TrustedProxies::ClientAddress(const std::string& peer,
                                          const HeaderValues& values_of) const {
  if (!Trusts(peer)) return peer;
  std::vector<std::string_view> hops = values_of("x-forwarded-for");
  const bool is_forwarded = hops.empty();
  if (is_forwarded) hops = values_of("forwarded");
  std::string client = peer;
  for (size_t i = hops.size(); i-- > 0;) {
    const std::vector<absl::string_view> elements =
        absl::StrSplit(absl::string_view(hops[i].data(), hops[i].size()), ',');
    for (size_t j = elements.size(); j-- > 0;) {
      if (!Trusts(client)) return client;
      const absl::string_view element = absl::StripAsciiWhitespace(elements[j]);
      const std::optional<absl::string_view> hop =
          is_forwarded ? ForOf(element) : std::make_optional(element);
      const std::optional<std::string> address = hop ? AddressOfHop(*hop) : std::nullopt;
      if (!address) {
        num_malformed_.fetch_add(1, std::memory_order_relaxed);
        return client;
      }
      client = *address;
    }
  }
  return client;
}

}  // namespace taopd
