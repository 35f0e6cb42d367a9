// A vLLM server as a RolloutWorker. It must run with VLLM_SERVER_DEV_MODE=1, whose routes change
// weights, and with --enable-scale-out, whose route generates from token ids.
//
// An update of the weights: the version is set to "updating", generation is paused
// (rollout.on_update), the server reads the directory, its prefix cache is emptied, and generation
// continues. Then the log-probs of the probe are compared with the student's own, and only a server
// that passes gets the new version. So a server that reports the new version has loaded all of its
// weights. Generation also continues if the update fails or is cancelled.
//
// The directory must exist on the server's machine: a reload that fails ends vLLM's engine. With
// rollout.weight_transfer nccl there is none: the server gets the tensors (vllm_transfer.h). The
// routes that change weights ask for no key, because vLLM guards only /v1 and /inference. So anyone
// who reaches the port can change the weights.
//
// Threads and errors: as RolloutWorker.
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "trainer/net/http_client.h"
#include "trainer/net/server_replies.h"
#include "trainer/rollout/endpoints/rollout_protocols.h"
#include "trainer/rollout/vllm/untied_head.h"
#include "trainer/rollout/vllm/vllm_messages.h"
#include "trainer/rollout/vllm/vllm_transfer.h"

namespace taopd {
namespace {

constexpr char kGeneratePath[] = "/inference/v1/generate";
// The version of a server whose weights are being changed, or could not be.
constexpr char kUpdatingVersion[] = "updating";
constexpr char kNoArguments[] = "{}";
// The limit of a resume after a failed update. The end of a run waits for the resume.
constexpr absl::Duration kResumeLimit = absl::Seconds(10);

// Returns the limit on the size of a response's JSON.
int64_t MaxRolloutBytes(const SamplingParams& sampling) {
  constexpr int64_t kEntryBytes = 128;
  return 65536 + sampling.max_new_tokens * (sampling.num_log_probs + 3) * kEntryBytes;
}

// Returns the error of a request. If the server does not have the route, it names the flag with
// which vLLM must be started.
absl::Status ExplainMissingRoute(const absl::Status& error, const char* flag) {
  if (!absl::IsNotFound(error) && !absl::IsPermissionDenied(error)) return error;
  return FailedPrecondition(error.message(), "; start vLLM with ", flag);
}

// The findings of a Check that returned OK. They do not change: a later Check makes new ones.
struct ServerFacts {
  RolloutNeeds needs;
  VllmServerInfo info;
  std::string model;
};

class VllmRolloutWorker final : public RolloutWorker {
 public:
  explicit VllmRolloutWorker(const RolloutWorkerOptions& options);

  const std::string& address() const override { return options_.address; }
  bool needs_probe() const override { return true; }
  absl::Status Check(const RolloutNeeds& needs, const std::stop_token& stop) override;
  absl::Status SetWeights(const PolicyWeights& weights, const std::stop_token& stop) override;
  absl::StatusOr<WorkerRollout> Generate(const RolloutRequest& request,
                                         const PolicyWeights& weights,
                                         const std::stop_token& stop) override;

 private:
  // Sends a request, a GET if `body` is empty, and returns the body of the reply. An error names
  // the path.
  absl::StatusOr<std::string> Ask(const std::string& path, const std::string& body,
                                  const std::stop_token& stop,
                                  int64_t max_reply_bytes = kMaxReplyBytes,
                                  absl::Duration limit = absl::InfiniteDuration());
  absl::StatusOr<std::string> Version(const std::stop_token& stop);
  absl::Status SetVersion(const std::string& version, const std::stop_token& stop);
  absl::Status CheckVocabulary(const ServerFacts& facts, const std::stop_token& stop);
  // Changes the weights while generation is paused.
  absl::Status UpdatePaused(const ServerFacts& facts, const PolicyWeights& weights,
                            const std::stop_token& stop);
  // Lets generation continue after an update that failed or was cancelled.
  void ResumeAfterFailure();
  // Makes the server read a directory, or sends its tensors. If the server has a head of its own
  // and the student's is tied, the weights are those of a copy that has a head, too.
  absl::Status Reload(const ServerFacts& facts, std::string directory, const std::stop_token& stop);
  absl::Status CompareWithProbe(const ServerFacts& facts, const WeightProbe& probe,
                                const std::stop_token& stop);
  // Returns the facts of the last Check. Each public call takes them once, so that a concurrent
  // Check does not affect it.
  std::shared_ptr<const ServerFacts> LastFacts() const {
    absl::MutexLock lock(&mutex_);
    return facts_;
  }

  static constexpr int64_t kMaxReplyBytes = int64_t{4} << 20;

  const RolloutWorkerOptions options_;
  HttpClient http_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ServerFacts> facts_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<const ServerFacts>();
  std::unique_ptr<VllmTransfer> transfer_;  // null unless weights go over NCCL
};

VllmRolloutWorker::VllmRolloutWorker(const RolloutWorkerOptions& options)
    : options_(options), http_({options.server}, options) {
  if (options.transfer != WeightTransfer::kNccl) return;
  transfer_ = std::make_unique<VllmTransfer>(
      [this](const std::string& path, const std::string& body, const std::stop_token& stop) {
        return Ask(path, body, stop);
      },
      [device = options.cuda_device] { return MakeNcclBroadcast(device); });
}

absl::StatusOr<std::string> VllmRolloutWorker::Ask(const std::string& path, const std::string& body,
                                                   const std::stop_token& stop,
                                                   int64_t max_reply_bytes, absl::Duration limit) {
  auto reply = http_.Exchange(/*server=*/0, path, body, max_reply_bytes,
                              std::min(options_.timeout, limit), /*on_data=*/nullptr, stop);
  if (!reply.ok()) return Annotate(reply.status(), path);
  if (reply->status != 200) return Annotate(ErrorOfReply(*reply, options_), path);
  return std::move(reply->body);
}

absl::Status VllmRolloutWorker::Check(const RolloutNeeds& needs, const std::stop_token& stop) {
  TAOPD_ASSIGN_OR_RETURN(const std::string models, Ask("/v1/models", "", stop));
  TAOPD_ASSIGN_OR_RETURN(const ListedModel model, FindListedModel(models, /*wanted=*/""));
  const auto info = Ask("/server_info?config_format=json", "", stop);
  TAOPD_RETURN_IF_ERROR(ExplainMissingRoute(info.status(), "VLLM_SERVER_DEV_MODE=1"));
  TAOPD_ASSIGN_OR_RETURN(VllmServerInfo server_info, ParseVllmServerInfo(*info));
  TAOPD_RETURN_IF_ERROR(CheckVllmServesRollouts(server_info, needs));
  auto facts =
      std::make_shared<const ServerFacts>(ServerFacts{needs, std::move(server_info), model.id});
  // A trainer that has died may have left the server paused.
  TAOPD_RETURN_IF_ERROR(Ask("/resume", kNoArguments, stop).status());
  TAOPD_RETURN_IF_ERROR(CheckVocabulary(*facts, stop));
  absl::MutexLock lock(&mutex_);
  facts_ = std::move(facts);
  return absl::OkStatus();
}

// The last id of the student's vocabulary must be the server's last one, too.
absl::Status VllmRolloutWorker::CheckVocabulary(const ServerFacts& facts,
                                                const std::stop_token& stop) {
  const auto last = static_cast<int32_t>(facts.needs.vocab_size - 1);
  const auto known = Ask(kGeneratePath, VllmProbeBody({last, last}, facts.model), stop);
  TAOPD_RETURN_IF_ERROR(ExplainMissingRoute(known.status(), "--enable-scale-out"));
  const auto beyond = Ask(kGeneratePath, VllmProbeBody({last + 1, last}, facts.model), stop);
  if (absl::IsInvalidArgument(beyond.status())) return absl::OkStatus();
  TAOPD_RETURN_IF_ERROR(beyond.status());
  return InvalidArgument("its vocabulary has more than the student's ", facts.needs.vocab_size,
                         " ids");
}

absl::StatusOr<std::string> VllmRolloutWorker::Version(const std::stop_token& stop) {
  TAOPD_ASSIGN_OR_RETURN(const std::string reply, Ask("/weight_info", "", stop));
  return ParseVllmText(reply, "weight_version");
}

absl::Status VllmRolloutWorker::SetVersion(const std::string& version,
                                           const std::stop_token& stop) {
  const std::string body = Concat(R"({"new_version": ")", version, R"("})");
  return Ask("/update_weight_version", body, stop).status();
}

absl::Status VllmRolloutWorker::SetWeights(const PolicyWeights& weights,
                                           const std::stop_token& stop) {
  const std::shared_ptr<const ServerFacts> facts = LastFacts();
  TAOPD_ASSIGN_OR_RETURN(const std::string version, Version(stop));
  if (version == weights.version) return absl::OkStatus();
  TAOPD_RETURN_IF_ERROR(SetVersion(kUpdatingVersion, stop));
  const absl::Status updated = UpdatePaused(*facts, weights, stop);
  if (!updated.ok()) {
    ResumeAfterFailure();
    return updated;
  }
  TAOPD_RETURN_IF_ERROR(CompareWithProbe(*facts, weights.probe, stop));
  return SetVersion(weights.version, stop);
}

absl::Status VllmRolloutWorker::UpdatePaused(const ServerFacts& facts, const PolicyWeights& weights,
                                             const std::stop_token& stop) {
  const char* pause =
      options_.on_update == OnUpdate::kFinish ? "/pause?mode=wait" : "/pause?mode=abort";
  TAOPD_RETURN_IF_ERROR(Ask(pause, kNoArguments, stop).status());
  TAOPD_RETURN_IF_ERROR(Reload(facts, weights.directory, stop));
  TAOPD_RETURN_IF_ERROR(Ask("/reset_prefix_cache", kNoArguments, stop).status());
  return Ask("/resume", kNoArguments, stop).status();
}

// A worker that is left out is not checked again, so nobody else would resume its server. The
// version stays "updating", so no answer counts as one of the old or of the new weights.
void VllmRolloutWorker::ResumeAfterFailure() {
  const absl::Status resumed =
      Ask("/resume", kNoArguments, {}, kMaxReplyBytes, kResumeLimit).status();
  if (resumed.ok()) return;
  LogWarning("the weights were not updated, and the server may stay paused",
             {{"endpoint", options_.address}, {"error", resumed}});
}

absl::Status VllmRolloutWorker::Reload(const ServerFacts& facts, std::string directory,
                                       const std::stop_token& stop) {
  std::unique_ptr<UntiedHead> untied;
  if (facts.needs.has_tied_head && facts.info.unties_head) {
    // Several workers may read the same directory concurrently.
    std::string path = Concat(directory, "-untied-", options_.server.address);
    std::replace_if(
        path.end() - static_cast<int64_t>(options_.server.address.size()), path.end(),
        [](char c) { return c == ':' || c == '[' || c == ']' || c == '%'; }, '_');
    TAOPD_ASSIGN_OR_RETURN(untied, UntiedHead::Make(directory, path));
    directory = untied->path();
  }
  if (transfer_ != nullptr) return transfer_->Send(directory, stop);
  if (facts.info.load_format == "dummy") {
    TAOPD_RETURN_IF_ERROR(Ask("/collective_rpc", VllmLoadFormatBody(), stop).status());
  }
  return Ask("/collective_rpc", VllmReloadBody(directory), stop).status();
}

absl::Status VllmRolloutWorker::CompareWithProbe(const ServerFacts& facts, const WeightProbe& probe,
                                                 const std::stop_token& stop) {
  TAOPD_ASSIGN_OR_RETURN(const std::string reply,
                         Ask(kGeneratePath, VllmProbeBody(probe.token_ids, facts.model), stop));
  TAOPD_ASSIGN_OR_RETURN(const std::vector<float> log_probs,
                         ParseVllmProbe(reply, probe.token_ids));
  double sum = 0;
  for (size_t i = 0; i < log_probs.size(); ++i) {
    sum += std::abs(static_cast<double>(log_probs[i]) - probe.log_probs[i]);
  }
  const double gap = sum / static_cast<double>(log_probs.size());
  const double limit = VllmProbeTolerance(facts.needs.dtype, facts.info.dtype);
  if (gap <= limit) return absl::OkStatus();
  return FailedPrecondition(
      "after the weights were loaded, its log-probs differ from the student's by ", gap,
      " on average, above the limit of ", limit,
      ": vLLM has not loaded every tensor, or computes another model (see the warnings in its "
      "log)");
}

absl::StatusOr<WorkerRollout> VllmRolloutWorker::Generate(const RolloutRequest& request,
                                                          const PolicyWeights& weights,
                                                          const std::stop_token& stop) {
  const std::shared_ptr<const ServerFacts> facts = LastFacts();
  const std::string body = VllmGenerateBody(request, facts->needs, facts->model);
  TAOPD_ASSIGN_OR_RETURN(const std::string reply,
                         Ask(kGeneratePath, body, stop, MaxRolloutBytes(request.sampling)));
  TAOPD_ASSIGN_OR_RETURN(WorkerRollout rollout, ParseVllmRollout(reply, request, facts->needs));
  if (rollout.version != weights.version) {
    return absl::AbortedError(Concat("it generates with the weights \"", rollout.version,
                                     "\" instead of \"", weights.version, "\""));
  }
  return rollout;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RolloutWorker>> MakeVllmRolloutWorker(
    const RolloutWorkerOptions& options) {
  if (options.transfer == WeightTransfer::kStream) {
    return InvalidArgument(
        "rollout.weight_transfer = stream: vLLM reads weights from a directory; set it to "
        "directory, or to nccl if the trainer and vLLM have a GPU each");
  }
  if (options.transfer == WeightTransfer::kNccl) {
    if (!HasNcclBroadcast()) return MakeNcclBroadcast(options.cuda_device).status();
    if (options.cuda_device < 0) {
      return InvalidArgument(
          "rollout.weight_transfer = nccl: the trainer computes on a CPU; set it to directory");
    }
  }
  return std::make_unique<VllmRolloutWorker>(options);
}

}  // namespace taopd
