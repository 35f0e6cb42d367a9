#include "trainer/rollout/rollout_engine.h"

#include "common/engine/worker_threads.h"

namespace taopd {

void LocalRolloutEngine::Generate(std::vector<RolloutRequest> requests, Done done) {
  auto shared_done = std::make_shared<Done>(std::move(done));
  RequestBatch batch;
  batch.reserve(requests.size());
  if (num_open_->load() == 0) handles_.clear();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i].given_ids.empty()) continue;
    InferenceRequest request;
    request.request_id = Concat("rollout-", i);
    request.token_ids = requests[i].prompt_ids;
    request.sampling = std::move(requests[i].sampling);
    const auto index = static_cast<int64_t>(i);
    auto finish =
        [shared_done, index, num_open = num_open_, policy_version = policy_version_,
         prompt_ids = std::move(requests[i].prompt_ids),
         source = std::move(requests[i].source)](absl::StatusOr<InferenceResult> result) mutable {
          num_open->fetch_sub(1);
          if (!result.ok()) return (*shared_done)(index, result.status());
          GeneratedTokens& generated = *result->generated;
          Rollout rollout = {.prompt_ids = std::move(prompt_ids),
                             .response_ids = std::move(generated.ids),
                             .behavior_log_probs = std::move(generated.log_probs),
                             .top_ids = std::move(generated.top_ids),
                             .finish = generated.finish,
                             .source = std::move(source)};
          if (policy_version) rollout.policy_version = policy_version();
          (*shared_done)(index, std::move(rollout));
        };
    batch.emplace_back(std::move(request), std::move(finish));
  }
  num_open_->fetch_add(static_cast<int64_t>(batch.size()));
  ReleaseWorkerThreads();  // the caller's threads, because the engine computes now
  const std::vector<RequestHandle> added = engine_->SubmitBatch(std::move(batch));
  handles_.insert(handles_.end(), added.begin(), added.end());
  // The cache is freed after the last request, so that training can use its memory. Its contents
  // are useless by then, because the weights change.
  engine_->ReleaseKvCache();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].given_ids.empty()) continue;
    (*shared_done)(static_cast<int64_t>(i), GivenRollout(std::move(requests[i])));
  }
}

void LocalRolloutEngine::CancelAll() {
  for (const RequestHandle handle : handles_) engine_->Cancel(handle);
}

}  // namespace taopd
