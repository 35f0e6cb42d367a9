// Checks of the settings by which a client is let in by its servers.
#pragma once

#include "common/base/status.h"

namespace taopd {

// Returns INVALID_ARGUMENT, naming the settings of `section`, if of a pair of settings one is
// missing or both are given. `Config` has the members tls_cert_file, tls_key_file, api_key_env and
// api_key_file.
template <typename Config>
absl::Status CheckServerAccess(const char* section, const Config& config) {
  if (config.tls_cert_file.empty() != config.tls_key_file.empty()) {
    return InvalidArgument(section, ".tls_cert_file and ", section,
                           ".tls_key_file are given together or not at all");
  }
  if (!config.api_key_env.empty() && !config.api_key_file.empty()) {
    return InvalidArgument(section, ".api_key_env and ", section,
                           ".api_key_file: give one of them");
  }
  return absl::OkStatus();
}

}  // namespace taopd
