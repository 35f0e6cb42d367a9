#include "server/grpc/vllm/run_registry.h"

#include "server/generation/engine_requests.h"

namespace taopd {

void RunRegistry::Remove(const Id& id, const EngineRun* run) {
  absl::MutexLock lock(&mutex_);
  const auto [begin, end] = runs_.equal_range(id);
  for (auto entry = begin; entry != end; ++entry) {
    if (entry->second.get() != run) continue;
    runs_.erase(entry);
    return;
  }
}

void RunRegistry::Abort(const Id& id) {
  if (id.second.empty()) return;
  // Under the lock: a run is removed before its model may go.
  absl::MutexLock lock(&mutex_);
  const auto [begin, end] = runs_.equal_range(id);
  for (auto entry = begin; entry != end; ++entry) entry->second->Cancel();
}

void StartRun(AdmittedInference admitted, EngineEvents events, WorkerPool* delivery,
              RunRegistry* runs, EngineWork* work) {
  work->MakeRun(std::move(admitted.model), std::move(admitted.answer_memory), std::move(events),
                delivery);
  const ServedModel& model = *work->model;
  const RunRegistry::Id id = {admitted.caller.client, admitted.request->request_id};
  runs->Add(id, work->run);
  work->on_done = [runs, id, run = work->run.get()] { runs->Remove(id, run); };
  // The call, and with it the model, stays until the run has ended.
  auto start = [&model, run = work->run, request = admitted.request, caller = admitted.caller] {
    run->Start(EngineRequests(*request, caller, model, /*scores=*/true));
  };
  if (!admitted.request->grammar) return start();
  GrammarCompiler::Request grammar = {.spec = admitted.request->grammar->spec,
                                      .field = admitted.request->grammar->field,
                                      .client = admitted.caller.client,
                                      .deadline = admitted.caller.deadline,
                                      .is_gone = [run = work->run] { return run->is_cancelled(); }};
  model.grammar_compiler->Submit(std::move(grammar), [run = work->run, request = admitted.request,
                                                      start = std::move(start)](auto compiled) {
    if (!compiled.ok()) return run->Refuse(compiled.status());
    request->compiled_grammar = *std::move(compiled);
    start();
  });
}

}  // namespace taopd
