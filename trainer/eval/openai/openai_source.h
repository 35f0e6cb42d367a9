// Generates responses with a server that speaks OpenAI's API: vLLM, SGLang, or taopd-teacher.
//
// A chat is sent to POST /chat/completions as messages, which the server's chat template renders.
// Text and token ids are sent to POST /completions. Each request yields one response. Transient
// failures are retried (openai_client.h); any other failure ends the evaluation with the server's
// message.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/worker_pool.h"
#include "trainer/eval/openai/openai_client.h"
#include "trainer/eval/response_source.h"

namespace taopd {

class OpenAiSource final : public ResponseSource {
 public:
  // Chooses the model (OpenAiClient::ChooseModel). Returns INVALID_ARGUMENT for a malformed URL,
  // UNAVAILABLE or PERMISSION_DENIED with the server's message, and NOT_FOUND with the list of the
  // server's models. `clock` must outlive the source.
  static absl::StatusOr<std::unique_ptr<OpenAiSource>> Connect(const OpenAiOptions& options,
                                                               Clock* clock = Clock::Real());
  ~OpenAiSource() override;

  const std::string& model() const { return model_; }
  // Returns the number of retries so far.
  int64_t num_retries() const { return client_.num_retries(); }
  void Generate(const std::vector<EvalTask>& tasks, const EvalSampling& sampling,
                Done done) override;
  // Ends the tasks soon, including those in flight.
  void Cancel() override;

 private:
  OpenAiSource(const OpenAiOptions& options, ServerAddress server, Clock* clock)
      : options_(options),
        client_(options, std::move(server), clock),
        pool_(static_cast<int>(options.concurrency)) {}
  absl::StatusOr<EvalResponse> Ask(const EvalTask& task, const EvalSampling& sampling,
                                   const std::stop_token& stop);

  const OpenAiOptions options_;
  OpenAiClient client_;
  std::string model_;
  absl::Mutex mutex_;
  // Ends the tasks of the last Generate.
  std::stop_source stop_ ABSL_GUARDED_BY(mutex_);
  WorkerPool pool_;  // last, because its threads use the other members
};

}  // namespace taopd
