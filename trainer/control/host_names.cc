#include "trainer/control/host_names.h"

#include <absl/strings/ascii.h>
#include <unistd.h>

namespace taopd {
namespace {

// "Box.example.:8080" is "box.example", "[::1]:80" is "::1".
std::string NormalizedName(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    host = end == std::string_view::npos ? "" : host.substr(1, end - 1);
  } else if (const size_t colon = host.find(':'); colon == host.rfind(':')) {
    host = host.substr(0, colon);  // one colon or none; more are an IPv6 address
  }
  if (host.ends_with('.')) host.remove_suffix(1);
  return absl::AsciiStrToLower(absl::string_view(host.data(), host.size()));
}

}  // namespace

HostNames::HostNames(const std::string& bound, const std::vector<std::string>& more)
    : names_{"localhost", "127.0.0.1", "::1", NormalizedName(bound)} {
  char own[256] = {};
  if (gethostname(own, sizeof(own) - 1) == 0) {
    const std::string name = NormalizedName(own);
    names_.insert(name);
    names_.insert(name.substr(0, name.find('.')));
  }
  for (const std::string& name : more) names_.insert(NormalizedName(name));
  names_.erase("");
}

bool HostNames::Allows(std::string_view host_header, const std::string& local_address) const {
  const std::string name = NormalizedName(host_header);
  // An IPv4 connection to a server that listens at "::" has an IPv4-mapped local address.
  const std::string_view local = local_address;
  constexpr std::string_view kMapped = "::ffff:";
  return names_.contains(name) ||
         (!name.empty() &&
          (name == local || (local.starts_with(kMapped) && name == local.substr(kMapped.size()))));
}

}  // namespace taopd
