// The token with which a rank joins the ranks' watch (rank_watch.h), so that strangers cannot. Does
// not use LibTorch.
//
// All ranks have a secret from their environment (TAOPD_RANK_SECRET). Rank 0 publishes its address,
// its port and a fresh number; the token is the HMAC-SHA256 (RFC 2104) of these under the secret. A
// stranger who can read what is published, but not the secret, cannot compute the token, and a
// token for another address is not valid for this one. Without a secret, anyone can compute it.
#pragma once

#include <string>

namespace taopd {

// Returns the token as 64 hexadecimal digits.
std::string WatchToken(const std::string& secret, const std::string& published);

// Returns 128 bits of the system's random generator as hexadecimal digits, for nonces and secrets.
std::string NewWatchNonce();

}  // namespace taopd
