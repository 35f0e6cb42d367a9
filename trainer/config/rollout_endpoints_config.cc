#include "trainer/config/rollout_endpoints_config.h"

#include <algorithm>

namespace taopd {

void RolloutEndpointsConfig::Declare(SettingTable& keys) {
  keys.AddMutable("endpoints", &endpoints,
                  "Servers that generate the rollouts instead of the trainer, with weights that "
                  "the trainer gives them: grpc://host:port (taopd-teacher --trainable; grpcs with "
                  "TLS) or vllm+http://host:port (vLLM; vllm+https). If the list is empty, the "
                  "trainer generates. See docs/rollouts.md.");
  keys.AddMutable("eval_endpoints", &eval_endpoints,
                  "Servers that generate the responses of evaluations with eval.mode beside, using "
                  "the weights that are measured. The settings of rollout.endpoints apply to them. "
                  "If the list is empty, the trainer generates these responses.");
  keys.AddMutable("weights_dir", &weights_dir,
                  "Directory through which the servers get the weights. It must have the same path "
                  "on all machines. If it is empty, a directory of the run is used.");
  keys.AddMutable(
      "weight_transfer", &weight_transfer,
      "How servers get the weights. With directory, they read rollout.weights_dir. With stream, "
      "the trainer sends the files to each taopd-teacher, in parts with checksums. With nccl, the "
      "trainer broadcasts them from its GPU to the GPUs of each vLLM.");
  keys.AddMutable("on_update", &on_update,
                  "What happens to the sequences that a server is computing, for any client, when "
                  "new weights arrive. With finish, the weights wait for them. With restart, they "
                  "are aborted, and their clients send them again.");
  keys.AddMutable("max_in_flight", &max_in_flight,
                  "Maximum number of requests in flight per server of rollouts.",
                  Between<int64_t>(1, 4096));
  keys.AddMutable(
      "timeout_s", &timeout_s,
      "Time limit in seconds for one attempt at one rollout or at one update of the weights.",
      Between(0.001, 86400.0));
  keys.AddMutable("outage_budget_s", &outage_budget_s,
                  "Time in seconds for which the run waits if no server of rollouts is ready. "
                  "After that, the run ends with code 69.",
                  AtLeast(0.0));
  keys.AddMutable("connect_timeout_s", &connect_timeout_s,
                  "Time limit in seconds for the wait for the servers of rollouts at the start.",
                  MoreThan(0.0));
  DeclareAccess(keys);
}

absl::Status CheckRolloutEndpoints(const RolloutEndpointsConfig& config) {
  TAOPD_RETURN_IF_ERROR(config.CheckAccess("rollout"));
  for (const std::string& endpoint : config.eval_endpoints) {
    const std::vector<std::string>& all = config.endpoints;
    if (std::ranges::find(all, endpoint) != all.end()) {
      return InvalidArgument("rollout.eval_endpoints: ", endpoint,
                             " is one of rollout.endpoints, too; a server has one version of the "
                             "weights at a time");
    }
  }
  if (config.IsElsewhere() || !config.eval_endpoints.empty()) return absl::OkStatus();
  const std::string given =
      FirstGiven(config, {"weights_dir", "weight_transfer", "on_update", "max_in_flight",
                          "timeout_s", "outage_budget_s", "connect_timeout_s", "tls_ca_file",
                          "tls_cert_file", "api_key_env", "api_key_file"});
  if (!given.empty())
    return InvalidArgument("rollout.", given, " needs rollout.endpoints, which is empty");
  return absl::OkStatus();
}

}  // namespace taopd
