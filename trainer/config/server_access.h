// The settings by which a client is let in by its servers, which several sections have.
#pragma once

#include <string>

#include "common/config/settings.h"

namespace taopd {

struct ServerAccess {
  std::string api_key_env;
  std::string api_key_file;
  std::string tls_ca_file;
  std::string tls_cert_file;
  std::string tls_key_file;
  void VisitAccess(SettingVisitor& v) {
    v.Setting("api_key_env", &api_key_env,
              "Environment variable that holds the servers' API key; it is sent as a bearer token.")
        .MayChange();
    v.Setting("api_key_file", &api_key_file, "File that holds the API key, in its first line.")
        .MayChange();
    v.Setting("tls_ca_file", &tls_ca_file,
              "PEM file of the authorities that sign the servers' certificates; empty: the "
              "system's list.")
        .MayChange();
    v.Setting("tls_cert_file", &tls_cert_file,
              "PEM file of this client's certificate, for servers that ask for one.")
        .MayChange();
    v.Setting("tls_key_file", &tls_key_file, "PEM file of the key of tls_cert_file.").MayChange();
  }
  // Returns INVALID_ARGUMENT, naming the settings of `section`, if of a pair of settings one is
  // missing or both are given.
  absl::Status CheckAccess(const char* section) const {
    if (tls_cert_file.empty() != tls_key_file.empty()) {
      return InvalidArgument(section, ".tls_cert_file and ", section,
                             ".tls_key_file must be given together or not at all");
    }
    if (!api_key_env.empty() && !api_key_file.empty()) {
      return InvalidArgument(section, ".api_key_env and ", section,
                             ".api_key_file: give one of them");
    }
    return absl::OkStatus();
  }
  // Returns the name of a setting that is not empty, or null.
  const char* FirstGiven() const {
    if (!tls_ca_file.empty()) return "tls_ca_file";
    if (!tls_cert_file.empty()) return "tls_cert_file";
    if (!api_key_env.empty()) return "api_key_env";
    return api_key_file.empty() ? nullptr : "api_key_file";
  }
};

}  // namespace taopd
