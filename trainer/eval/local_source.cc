#include "trainer/eval/local_source.h"

namespace taopd {

void LocalSource::Generate(const std::vector<EvalTask>& tasks, const EvalSampling& sampling,
                           Done done) {
  std::vector<RolloutRequest> requests;
  requests.reserve(tasks.size());
  for (const EvalTask& task : tasks) {
    RolloutRequest request;
    request.prompt_ids = task.problem->prompt_ids;
    request.sampling.max_new_tokens = sampling.max_tokens;
    request.sampling.temperature = static_cast<float>(sampling.temperature);
    request.sampling.top_p = static_cast<float>(sampling.top_p);
    request.sampling.seed = task.seed;
    requests.push_back(std::move(request));
  }
  engine_->Generate(std::move(requests), [tokenizer = tokenizer_, done = std::move(done)](
                                             int64_t index, absl::StatusOr<Rollout> rollout) {
    if (!rollout.ok()) return done(static_cast<size_t>(index), rollout.status());
    EvalResponse response = {.text = tokenizer->Decode(rollout->response_ids),
                             .truncated = rollout->finish == FinishReason::kLength,
                             .num_tokens = static_cast<int64_t>(rollout->response_ids.size())};
    done(static_cast<size_t>(index), std::move(response));
  });
}

}  // namespace taopd
