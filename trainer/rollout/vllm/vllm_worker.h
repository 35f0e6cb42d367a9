// A vLLM server as a RolloutWorker. It must run with VLLM_SERVER_DEV_MODE=1, whose routes change
// weights, and with --enable-scale-out, whose route generates from token ids.
//
// An update of the weights: the version is set to "updating", generation is paused
// (rollout.on_update), the server reads the directory, its prefix cache is emptied, and generation
// goes on. Then the log-probs of the probe are compared with the student's own, and only a server
// that passes gets the new version. A server whose version is the wanted one has therefore read all
// of it.
//
// A reload that fails ends vLLM's engine: the directory must exist on the server's machine. The
// routes that change weights ask for no key (vLLM guards /v1 and /inference alone), so that whoever
// reaches the port can change the weights.
//
// Threads and errors: as RolloutWorker.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <memory>
#include <string>

#include "trainer/http/http_client.h"
#include "trainer/rollout/endpoints/rollout_protocols.h"
#include "trainer/rollout/vllm/vllm_messages.h"

namespace taopd {

class VllmWorker final : public RolloutWorker {
 public:
  explicit VllmWorker(const RolloutWorkerOptions& options);

  const std::string& address() const override { return options_.address; }
  absl::Status Check(const RolloutNeeds& needs, const Cancellation& cancellation) override;
  absl::Status SetWeights(const PolicyWeights& weights, const Cancellation& cancellation) override;
  absl::StatusOr<WorkerRollout> Generate(const RolloutRequest& request,
                                         const PolicyWeights& weights,
                                         const Cancellation& cancellation) override;

 private:
  // The body of the reply to one request, which is a GET if `body` is empty. An error names the
  // path.
  absl::StatusOr<std::string> Ask(const std::string& path, const std::string& body,
                                  const Cancellation& cancellation,
                                  int64_t max_reply_bytes = kMaxReplyBytes);
  absl::StatusOr<std::string> Version(const Cancellation& cancellation);
  absl::Status SetVersion(const std::string& version, const Cancellation& cancellation);
  absl::Status CheckVocabulary(const Cancellation& cancellation);
  // Makes the server read a directory; if it has a head of its own and the student's is tied, a copy
  // of the directory that has one, too.
  absl::Status Reload(std::string directory, const Cancellation& cancellation);
  absl::Status CompareWithProbe(const WeightProbe& probe, const Cancellation& cancellation);

  static constexpr int64_t kMaxReplyBytes = int64_t{4} << 20;

  const RolloutWorkerOptions options_;
  const HttpCredentials credentials_;
  HttpClient http_;
  // Set by Check.
  RolloutNeeds needs_;
  VllmServerInfo info_;
  std::string model_;
};

}  // namespace taopd
