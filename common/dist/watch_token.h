// What a rank says to join the ranks' watch (rank_watch.h), so that no stranger can. No LibTorch.
//
// All ranks have a secret from their environment (TAOPD_RANK_SECRET). Rank 0 publishes its address,
// its port and a fresh number; the token is the HMAC-SHA256 (RFC 2104) of these under the secret.
// Who can read what is published, but not the secret, cannot make the token; and a token for
// another address is none for this one. Without a secret everybody can make it.
#pragma once

#include <string>

namespace taopd {

// 64 hexadecimal digits.
std::string WatchToken(const std::string& secret, const std::string& published);

// 128 bits of the system's random generator, as hexadecimal digits; for nonces and for secrets.
std::string NewWatchNonce();

}  // namespace taopd
