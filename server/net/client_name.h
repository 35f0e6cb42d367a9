// How the server tells its clients apart when it shares out the engine, the queue and the memory.
#pragma once

#include <string>
#include <string_view>

namespace taopd {

// The part of an address that one subscriber has: an IPv4 address, or the first half of an IPv6
// one. Text that is no address is returned as it is. An IPv4 address that is written as an IPv6 one
// is an IPv4 address.
std::string SubscriberOf(const std::string& address);

// The client's name: the subscriber, and the key that it has shown (ApiKeys::NameOf; empty if none
// is asked for). So neither programs on one machine that have keys of their own count as one, nor
// machines that share a key.
std::string ClientName(const std::string& address, std::string_view key_name);

}  // namespace taopd
