// Attempts over HTTP, for servers with the API of vLLM or SGLang: one request per sequence.
//
// Such servers do not tell their vocabulary, send no tail, and score at temperature 1 without
// entropy, candidates or dense log-probs; TeacherInfo says so. A tail is NaN in the scores. The
// revision consists of the model's name and of vLLM's system_fingerprint or SGLang's
// weight_version, if replies have it.
//
// Threads: any thread may call. Each attempt occupies a thread of this object. Threads are made
// when they are needed, up to the limits of the endpoints.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/worker_pool.h"
#include "trainer/net/http_client.h"
#include "trainer/teacher/network_teacher_client.h"
#include "trainer/teacher/score_transport.h"
#include "trainer/teacher/transport/teacher_protocols.h"

namespace taopd {

class HttpScoreTransport final : public ScoreTransport {
 public:
  // All `endpoints` must speak the same protocol over HTTP.
  HttpScoreTransport(const std::vector<TeacherEndpoint>& endpoints,
                     const TeacherClientOptions& options);
  // REQUIRES: every attempt has ended.
  ~HttpScoreTransport() override;

  absl::Status Check(const TeacherRequest& request, const TeacherInfo& info) const override;
  void Start(size_t endpoint, const TeacherRequest& request, const TeacherInfo& info,
             absl::Duration timeout, std::function<void(Result)> done) override;
  void CancelAll() override;
  // Lists the models and scores two tokens, which shows whether the server gives probe_top_k
  // log-probs and what it says of its revision. Then finds the canary (TeacherInfo).
  absl::StatusOr<TeacherInfo> Ask(size_t endpoint, absl::Duration timeout) override;

 private:
  // Sends one request. The scores of the result are not verified.
  Result Send(size_t endpoint, const TeacherRequest& request, const std::string& model,
              absl::Duration timeout);
  Result Attempt(size_t endpoint, const TeacherRequest& request, const TeacherInfo& info,
                 absl::Duration timeout);
  // Returns the verified scores of two tokens.
  absl::StatusOr<TeacherScores> Probe(size_t endpoint, std::pair<int32_t, int32_t> tokens,
                                      int64_t top_k, const TeacherInfo& info,
                                      absl::Duration timeout);
  // Returns a hash of the scores of all canary requests.
  absl::StatusOr<std::string> AskCanary(size_t endpoint, const TeacherInfo& info,
                                        absl::Duration timeout);
  // Sets info->canary to a hash that AskCanary returns twice in a row. Clears
  // info->has_stable_scores if two tries find none, or if the server refuses the requests.
  absl::Status FindCanary(size_t endpoint, absl::Duration timeout, TeacherInfo* info);
  // Returns the error of a reply other than 200.
  absl::Status ErrorOf(const HttpReply& reply, const TeacherRequest& request) const;

  const TeacherClientOptions options_;
  const std::unique_ptr<HttpProtocol> protocol_;
  HttpClient http_;
  WorkerPool pool_;  // last, because its threads use the rest
};

}  // namespace taopd
