#include "trainer/setup/training/remote_rollouts.h"

#include <filesystem>
#include <utility>

#include "common/io/sha256.h"
#include "trainer/checkpoint/disk_plan.h"
#include "trainer/setup/engine_options.h"

namespace taopd {
namespace {

// The settings that name servers, for messages.
constexpr char kRolloutServers[] = "rollout.endpoints";
constexpr char kEvaluationServers[] = "rollout.eval_endpoints";

absl::StatusOr<std::vector<std::string>> EndpointsOfRank(const char* setting,
                                                         const std::vector<std::string>& all,
                                                         const ProcessGroup& group) {
  const int64_t num_ranks = group.world_size();
  if (static_cast<int64_t>(all.size()) < num_ranks) {
    return InvalidArgument(setting, ": ", all.size(), " servers are fewer than the ", num_ranks,
                           " ranks, each of which needs one of its own");
  }
  std::vector<std::string> mine;
  for (auto i = static_cast<size_t>(group.rank()); i < all.size();
       i += static_cast<size_t>(num_ranks)) {
    mine.push_back(all[i]);
  }
  return mine;
}

using Workers = std::vector<std::unique_ptr<RolloutWorker>>;

// Makes this rank's workers of the servers that a setting names; none if it names none.
absl::StatusOr<Workers> WorkersOfRank(const char* setting, const std::vector<std::string>& all,
                                      const TrainingParts& parts) {
  if (all.empty()) return Workers();
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> mine,
                         EndpointsOfRank(setting, all, *parts.group));
  TAOPD_ASSIGN_OR_RETURN(const RolloutWorkerOptions common, MakeWorkerOptions(parts.config));
  return Annotate(MakeRolloutWorkers(mine, common), setting);
}

// Makes an engine over workers, and waits for them.
absl::StatusOr<std::unique_ptr<RemoteRolloutEngine>> ConnectEngine(const char* setting,
                                                                   const RolloutConfig& config,
                                                                   Workers workers,
                                                                   RolloutNeeds needs) {
  const RemoteRolloutOptions options = {.max_in_flight = config.max_in_flight,
                                        .outage_budget = absl::Seconds(config.outage_budget_s)};
  auto engine =
      std::make_unique<RemoteRolloutEngine>(std::move(workers), std::move(needs), options);
  const absl::Status connected = engine->Connect(absl::Seconds(config.connect_timeout_s));
  if (connected.ok()) return engine;
  const absl::Status named = Annotate(connected, setting);
  return absl::IsUnavailable(connected) ? WithExitCode(kExitUnavailable, named) : BadUsage(named);
}

// Returns the directory of this rank's weights. It is absolute, because the servers have other
// working directories, and names the run, because several may share rollout.weights_dir.
std::string WeightsDirectory(const TrainingParts& parts) {
  std::error_code error;
  const std::string run_dir = std::filesystem::absolute(parts.run.run_dir(), error).string();
  const std::string& shared = parts.config.rollout.weights_dir;
  const int64_t rank = parts.group->rank();
  if (shared.empty()) return Concat(run_dir, "/", kPublishedPrefix, rank);
  return Concat(std::filesystem::absolute(shared, error).string(), "/run-",
                Sha256Hex(run_dir).substr(0, 12), "-rank-", rank);
}

}  // namespace

absl::Status MakeRemoteRollouts(TrainingParts* parts) {
  const RolloutConfig& config = parts->config.rollout;
  TAOPD_ASSIGN_OR_RETURN(parts->rollouts.workers,
                         WorkersOfRank(kRolloutServers, config.endpoints, *parts));
  TAOPD_ASSIGN_OR_RETURN(parts->rollouts.evaluation_workers,
                         WorkersOfRank(kEvaluationServers, config.eval_endpoints, *parts));
  return absl::OkStatus();
}

absl::Status ConnectRemoteRollouts(TrainingParts* parts) {
  const RolloutConfig& config = parts->config.rollout;
  const bool evaluates =
      parts->rollouts.evaluation_snapshot != nullptr && !config.eval_endpoints.empty();
  if (!config.IsElsewhere() && !evaluates) return absl::OkStatus();
  RolloutNeeds needs = RolloutNeedsOf(parts->config, parts->run.student());
  if (config.IsElsewhere()) {
    TAOPD_ASSIGN_OR_RETURN(
        parts->rollouts.servers,
        ConnectEngine(kRolloutServers, config, std::move(parts->rollouts.workers), needs));
    parts->rollouts.published_weights =
        std::make_unique<PublishedWeights>(parts->run.student().decoder.get(),
                                           parts->rollouts.servers.get(), WeightsDirectory(*parts));
  }
  if (!evaluates) return absl::OkStatus();
  needs.max_model_len =
      parts->config.data.max_prompt_length + parts->config.eval.max_response_length;
  // Evaluations do not use log-probs, so a server need not report them.
  needs.sampling = SamplingParams();
  TAOPD_ASSIGN_OR_RETURN(auto engine,
                         ConnectEngine(kEvaluationServers, config,
                                       std::move(parts->rollouts.evaluation_workers), needs));
  parts->rollouts.evaluation_snapshot->GenerateElsewhere(std::move(engine),
                                                         WeightsDirectory(*parts) + "-eval");
  return absl::OkStatus();
}

}  // namespace taopd
