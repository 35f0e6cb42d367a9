#include "server/grpc/vllm/run_registry.h"

#include <utility>

namespace taopd {

void RunRegistry::Add(const Id& id, const std::shared_ptr<EngineRun>& run) {
  absl::MutexLock lock(&mutex_);
  runs_.emplace(id, run);
}

void RunRegistry::Remove(const Id& id, const EngineRun* run) {
  absl::MutexLock lock(&mutex_);
  const auto [begin, end] = runs_.equal_range(id);
  for (auto entry = begin; entry != end; ++entry) {
    if (entry->second.get() != run) continue;
    runs_.erase(entry);
    return;
  }
}

void RunRegistry::Abort(const std::string& client, const std::string& request_id) {
  if (request_id.empty()) return;  // that is everybody who has chosen none
  // Under the lock: a run is removed before its model may go.
  absl::MutexLock lock(&mutex_);
  const auto [begin, end] = runs_.equal_range({client, request_id});
  for (auto entry = begin; entry != end; ++entry) entry->second->Cancel();
}

void StartRun(AdmittedInference admitted, std::vector<InferenceRequest> requests,
              EngineEvents events, RunRegistry* runs, EngineWork* work) {
  work->model = std::move(admitted.model);
  work->answer_memory = std::move(admitted.answer_memory);
  work->run = std::make_shared<EngineRun>(work->model->engine.get(), std::move(events));
  const RunRegistry::Id id = {admitted.request.client, admitted.request.request_id};
  runs->Add(id, work->run);
  work->on_done = [runs, id, run = work->run.get()] { runs->Remove(id, run); };
  if (!admitted.grammar) {
    work->run->Start(std::move(requests));
    return;
  }
  // The call, and with it the model, stays until the run has ended.
  const InferenceRequest& first = requests[0];
  GrammarCompiler::Request grammar = {.spec = *std::move(admitted.grammar),
                                      .field = admitted.grammar_field,
                                      .client = first.client,
                                      .deadline = first.deadline,
                                      .is_gone = [run = work->run] { return run->is_cancelled(); }};
  work->model->grammar_compiler->Submit(
      std::move(grammar), [run = work->run, requests = std::move(requests)](auto compiled) mutable {
        if (!compiled.ok()) return run->Refuse(compiled.status());
        for (InferenceRequest& request : requests) {
          request.sampling->mask = Grammar::NewMask(*compiled, request.sampling->stop_token_ids);
        }
        run->Start(std::move(requests));
      });
}

}  // namespace taopd
