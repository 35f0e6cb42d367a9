// The certificates with which a client of gRPC speaks TLS. It does not include gRPC.
#pragma once

#include <string>

#include "common/base/status.h"

namespace taopd {

// In PEM format. Empty: not given.
struct TlsPem {
  std::string ca;    // who signed the servers' certificates; empty: the system's list
  std::string cert;  // of this client
  std::string key;
};

// Reads the files; an empty path stands for no file. Returns INVALID_ARGUMENT, naming the setting
// (tls_ca_file, tls_cert_file, tls_key_file), if one cannot be read.
absl::StatusOr<TlsPem> ReadTlsPem(const std::string& ca_path, const std::string& cert_path,
                                  const std::string& key_path);

}  // namespace taopd
