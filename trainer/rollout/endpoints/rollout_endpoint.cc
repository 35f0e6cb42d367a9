#include "trainer/rollout/endpoints/rollout_endpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/log.h"

namespace taopd {
namespace {

struct ParsedEndpoint {
  ServerAddress server;
  const RolloutProtocol* protocol = nullptr;
};

absl::StatusOr<ParsedEndpoint> ParseEndpoint(const std::string& text) {
  for (const RolloutProtocol& protocol : kRolloutProtocols) {
    for (const bool tls : {false, true}) {
      const std::string scheme = Concat(tls ? protocol.tls_scheme : protocol.scheme, "://");
      if (!text.starts_with(scheme)) continue;
      auto server = ParseServerAddress(text.substr(scheme.size()), tls, protocol.is_http);
      if (!server.ok()) {
        return InvalidArgument("rollout endpoint \"", text, "\" ", server.status().message(),
                               " (expected ", DescribeRolloutSchemes(), ")");
      }
      return ParsedEndpoint{*std::move(server), &protocol};
    }
  }
  return InvalidArgument("rollout endpoint \"", text,
                         "\" does not begin with a known scheme (expected ",
                         DescribeRolloutSchemes(), ")");
}

}  // namespace

std::string DescribeRolloutSchemes() {
  std::string text;
  for (const RolloutProtocol& protocol : kRolloutProtocols) {
    text += Concat(text.empty() ? "" : ", ", protocol.scheme, "://host:port (", protocol.server,
                   "; over TLS ", protocol.tls_scheme, ")");
  }
  return text;
}

absl::StatusOr<std::vector<std::unique_ptr<RolloutWorker>>> MakeRolloutWorkers(
    const std::vector<std::string>& endpoints, const RolloutWorkerOptions& common) {
  std::vector<std::unique_ptr<RolloutWorker>> workers;
  std::set<std::string> seen;
  bool any_tls = false, all_tls = true;
  for (const std::string& text : endpoints) {
    TAOPD_ASSIGN_OR_RETURN(const ParsedEndpoint parsed, ParseEndpoint(text));
    if (!seen.insert(parsed.server.address + parsed.server.prefix).second)
      return InvalidArgument("rollout endpoint \"", text, "\" is given twice");
    any_tls |= parsed.server.tls;
    all_tls &= parsed.server.tls;
    RolloutWorkerOptions options = common;
    options.server = parsed.server;
    options.address = text;
    auto worker = parsed.protocol->make(options);
    if (!worker.ok()) return Annotate(worker.status(), text);
    workers.push_back(*std::move(worker));
  }
  if (!any_tls && (!common.tls_ca_file.empty() || !common.tls_cert_file.empty())) {
    return InvalidArgument("TLS files are given but no endpoint uses TLS");
  }
  if (!common.api_key.empty() && !all_tls)
    LogWarning("the API key of the rollout endpoints is sent without encryption");
  return workers;
}

}  // namespace taopd
