// The names by which the server distinguishes its clients, when it divides threads, the queue, the
// engine and the memory, and when a client ends requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// Returns the part of an address that identifies a subscriber: an IPv4 address, or the first half
// of an IPv6 address. An IPv4 address in IPv6 notation counts as an IPv4 address. Text that is not
// an address is returned unchanged.
std::string SubscriberOf(const std::string& address);

// Returns the client's name: that of the key that it has shown (ApiKeys::NameOf) or, if no key is
// required (`key_name` is empty), the subscriber.
std::string ClientName(const std::string& address, std::string_view key_name);

// The proxies that are trusted to report the address of a client. Thread-safe.
class TrustedProxies {
 public:
  // `networks` are addresses ("10.0.0.7", "fd00::1") and CIDR ranges ("10.0.0.0/8", "fd00::/8").
  // Returns INVALID_ARGUMENT if one of them is neither, or has bits set after its prefix. Call it
  // before the object is shared.
  absl::Status Add(const std::vector<std::string>& networks);

  // Returns the values of all headers with this name, in the order of arrival.
  using HeaderValues = std::function<std::vector<std::string_view>(const char* name)>;
  // Returns the address of the client behind a connection from `peer`. Proxies name their clients
  // in X-Forwarded-For ("client, proxy") or, if a request has none, in Forwarded ("for=client,
  // for=proxy"; RFC 7239).
  //
  // The values are read from the right. Each one counts only if the hop that added it is trusted,
  // so a client cannot change the result by such a header. A value that is not an address ends the
  // reading: the client is then the last known hop, and num_malformed() increases.
  std::string ClientAddress(const std::string& peer, const HeaderValues& values_of) const;

  bool Trusts(const std::string& address) const;
  uint64_t num_malformed() const { return num_malformed_.load(std::memory_order_relaxed); }

 private:
  struct Network {
    std::string bytes;  // 16 bytes; IPv4 addresses are in IPv6 notation
    int prefix_bits = 0;
  };

  std::vector<Network> networks_;
  mutable std::atomic<uint64_t> num_malformed_{0};
};

}  // namespace taopd
