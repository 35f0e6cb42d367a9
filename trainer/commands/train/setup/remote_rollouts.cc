#include "trainer/commands/train/setup/remote_rollouts.h"

#include <filesystem>
#include <utility>

#include "common/io/sha256.h"
#include "common/model/weights/lora_weights.h"
#include "common/model/weights/weights.h"
#include "trainer/commands/api_key.h"
#include "trainer/commands/process.h"
#include "trainer/rollout/endpoints/rollout_endpoint.h"
#include "trainer/step/rollout_requests.h"

namespace taopd {
namespace {

absl::StatusOr<std::vector<std::string>> EndpointsOfRank(const TrainingParts& parts) {
  const std::vector<std::string>& all = parts.config.rollout.endpoints;
  const int64_t num_ranks = parts.group->world_size();
  if (static_cast<int64_t>(all.size()) < num_ranks) {
    return InvalidArgument("rollout.endpoints: ", all.size(), " servers are fewer than the ",
                           num_ranks, " ranks, each of which needs one of its own");
  }
  std::vector<std::string> mine;
  for (auto i = static_cast<size_t>(parts.group->rank()); i < all.size();
       i += static_cast<size_t>(num_ranks)) {
    mine.push_back(all[i]);
  }
  return mine;
}

// Servers elsewhere have another working directory, and several runs may share rollout.weights_dir.
std::string WeightsDirectory(const TrainingParts& parts) {
  std::error_code error;
  const std::string run_dir = std::filesystem::absolute(parts.run.run_dir(), error).string();
  const std::string& shared = parts.config.rollout.weights_dir;
  const int64_t rank = parts.group->rank();
  if (shared.empty()) return Concat(run_dir, "/weights-rank-", rank);
  return Concat(std::filesystem::absolute(shared, error).string(), "/run-",
                Sha256Hex(run_dir).substr(0, 12), "-rank-", rank);
}

}  // namespace

absl::StatusOr<RolloutNeeds> RolloutNeedsOf(const TrainConfig& config, const Decoder& student) {
  RolloutNeeds needs;
  needs.vocab_size = student.config().vocab_size;
  needs.max_model_len = config.data.max_prompt_length + config.data.max_response_length;
  needs.dtype = ConfigDtype(student.dtype());
  needs.has_adapters = student.lora() != nullptr;
  if (needs.has_adapters) {
    TAOPD_ASSIGN_OR_RETURN(needs.base_revision, BaseRevision(student));
  }
  needs.has_tied_head = student.config().tie_word_embeddings;
  needs.eos_token_ids = student.config().eos_token_ids;
  needs.sampling = RolloutSampling(config);
  return needs;
}

absl::StatusOr<RolloutWorkerOptions> WorkerOptionsOf(const RolloutConfig& config) {
  RolloutWorkerOptions options;
  TAOPD_ASSIGN_OR_RETURN(options.api_key,
                         ReadApiKey("rollout", config.api_key_env, config.api_key_file));
  options.tls_ca_file = config.tls_ca_file;
  options.tls_cert_file = config.tls_cert_file;
  options.tls_key_file = config.tls_key_file;
  options.timeout = absl::Seconds(config.timeout_s);
  options.max_in_flight = config.max_in_flight;
  options.transfer = config.weight_transfer;
  options.on_update = config.on_update;
  return options;
}

absl::Status MakeRemoteRollouts(TrainingParts* parts) {
  const RolloutConfig& config = parts->config.rollout;
  if (!config.IsElsewhere()) return absl::OkStatus();
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> mine, EndpointsOfRank(*parts));
  TAOPD_ASSIGN_OR_RETURN(const RolloutWorkerOptions common, WorkerOptionsOf(config));
  auto workers = MakeRolloutWorkers(mine, common);
  if (!workers.ok()) return Annotate(workers.status(), "rollout.endpoints");
  parts->rollout_workers = *std::move(workers);
  return absl::OkStatus();
}

absl::Status ConnectRemoteRollouts(TrainingParts* parts) {
  const RolloutConfig& config = parts->config.rollout;
  if (!config.IsElsewhere()) return absl::OkStatus();
  auto needs = RolloutNeedsOf(parts->config, *parts->student.decoder);
  if (!needs.ok()) return BadModel(needs.status());
  RemoteRolloutOptions options;
  options.max_in_flight = config.max_in_flight;
  options.outage_budget = absl::Seconds(config.outage_budget_s);
  parts->remote_rollouts = std::make_unique<RemoteRolloutEngine>(std::move(parts->rollout_workers),
                                                                 *std::move(needs), options);
  const absl::Status connected =
      parts->remote_rollouts->Connect(absl::Seconds(config.connect_timeout_s));
  if (absl::IsUnavailable(connected))
    return WithExitCode(kExitUnavailable, Annotate(connected, "rollout.endpoints"));
  if (!connected.ok()) return BadUsage(Annotate(connected, "rollout.endpoints"));
  parts->published_weights = std::make_unique<PublishedWeights>(
      parts->student.decoder.get(), parts->remote_rollouts.get(), WeightsDirectory(*parts));
  return absl::OkStatus();
}

}  // namespace taopd
