#include "trainer/rollout/endpoints/rollout_protocols.h"

#include <set>

namespace taopd {

absl::StatusOr<std::vector<std::unique_ptr<RolloutWorker>>> MakeRolloutWorkers(
    const std::vector<std::string>& endpoints, const RolloutWorkerOptions& common) {
  TAOPD_RETURN_IF_ERROR(CheckApiKey(common.api_key));
  std::vector<std::unique_ptr<RolloutWorker>> workers;
  std::set<std::string> seen;
  std::vector<ServerAddress> servers;
  for (const std::string& text : endpoints) {
    TAOPD_ASSIGN_OR_RETURN(const auto parsed, ParseEndpoint("rollout", kRolloutProtocols, text));
    if (!seen.insert(parsed.server.address + parsed.server.prefix).second)
      return InvalidArgument("rollout endpoint \"", text, "\" is given twice");
    servers.push_back(parsed.server);
    RolloutWorkerOptions options = common;
    options.server = parsed.server;
    options.address = text;
    TAOPD_ASSIGN_OR_RETURN(workers.emplace_back(), Annotate(parsed.protocol->make(options), text));
  }
  TAOPD_RETURN_IF_ERROR(CheckTlsUse(servers, common));
  return workers;
}

}  // namespace taopd
