// How the server tells its clients apart when it shares out threads, the queue, the engine and the
// memory, and whose requests a client may end.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace taopd {

// The part of an address that one subscriber has: an IPv4 address, or the first half of an IPv6
// one. Text that is no address is returned as it is. An IPv4 address that is written as an IPv6 one
// is an IPv4 address.
std::string SubscriberOf(const std::string& address);

// The client's name: the key that it has shown (ApiKeys::NameOf), or, where no key is asked for
// (`key_name` is empty), the subscriber.
std::string ClientName(const std::string& address, std::string_view key_name);

// The proxies whose word is taken for the address of a client. Thread-safe.
class TrustedProxies {
 public:
  TrustedProxies() = default;
  TrustedProxies(const TrustedProxies&) = delete;

  // `networks` are addresses ("10.0.0.7", "fd00::1") and CIDR ranges ("10.0.0.0/8", "fd00::/8").
  // Returns INVALID_ARGUMENT if one of them is neither, or has bits behind its prefix. To be called
  // before the object is shared.
  absl::Status Set(const std::vector<std::string>& networks);

  // The address of the client behind a connection from `peer`. `hops` are the values of the headers
  // in which proxies name whom they serve, in the order in which they came: X-Forwarded-For
  // ("client, proxy"), or, if there is none, Forwarded ("for=client, for=proxy"; RFC 7239).
  //
  // The values are read from the right. Each one counts only if the hop that added it is trusted,
  // so a client that writes such a header itself changes nothing. A value that is no address ends
  // the reading: the client is then the last hop that was known, and num_malformed() grows.
  std::string ClientAddress(const std::string& peer, const std::vector<std::string_view>& hops,
                            bool forwarded) const;

  bool Trusts(const std::string& address) const;
  bool empty() const { return networks_.empty(); }
  uint64_t num_malformed() const { return num_malformed_.load(std::memory_order_relaxed); }

 private:
  struct Network {
    std::string bytes;  // 16: IPv4 addresses as IPv6 ones
    int prefix_bits = 0;
  };

  std::vector<Network> networks_;
  mutable std::atomic<uint64_t> num_malformed_{0};
};

}  // namespace taopd
