// The credentials of a client, and the servers that it trusts, over HTTP and gRPC.
#pragma once

#include <string>

#include "common/base/status.h"

namespace taopd {

// The files are in PEM format and for TLS alone.
struct ClientCredentials {
  std::string api_key;        // sent as "authorization: Bearer KEY"; empty: none
  std::string api_key_env;    // the environment variable that it comes from, for messages
  std::string tls_ca_file;    // the authorities of servers' certificates; empty: the system's
  std::string tls_cert_file;  // this client's certificate; empty: it has none
  std::string tls_key_file;   // the key of that certificate
};

// Returns INVALID_ARGUMENT if the key has characters that the header of a request cannot carry.
absl::Status CheckApiKey(const std::string& key);

// Returns the key in an environment variable. Returns INVALID_ARGUMENT, naming the setting, if it
// is empty or not set, or the error of CheckApiKey.
absl::StatusOr<std::string> ApiKeyFrom(const std::string& variable, const std::string& setting);

}  // namespace taopd
