// The names by which a request may call this server. A browser sends the name of the page's site as
// Host. A page of another site can make its name point to this machine (DNS rebinding) and would
// then read what is served here as its own; it cannot change the name.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace taopd {

class HostNames {
 public:
  // `bound` is the address or name that the server listens at; `more` are further names.
  HostNames(const std::string& bound, const std::vector<std::string>& more);

  // Returns whether `host_header`, as "name:port" or "[::1]:port", is localhost, a loopback
  // address, what the server is bound to, this machine's name, the address that the connection came
  // to, or one of the further names. Ports, letter case and a dot at the end do not matter.
  bool Allows(std::string_view host_header, const std::string& local_address) const;

 private:
  std::set<std::string> names_;
};

}  // namespace taopd
