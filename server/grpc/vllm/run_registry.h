// Starts the runs of vLLM's services, and lets a client end its runs by the ids that it chose. Ids
// belong to their client: the same id of two clients names two runs, and no client can end another
// client's runs.
#pragma once

#include <absl/synchronization/mutex.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "server/grpc/calls/engine_calls.h"
#include "server/grpc/vllm/inference_request.h"

namespace taopd {

// Several runs may have the same id. Thread-safe.
class RunRegistry {
 public:
  // The client's name (server/net/client_name.h), and the id that it chose.
  using Id = std::pair<std::string, std::string>;

  void Add(const Id& id, const std::shared_ptr<EngineRun>& run) {
    absl::MutexLock lock(&mutex_);
    runs_.emplace(id, run);
  }
  void Remove(const Id& id, const EngineRun* run);
  // Cancels all runs with this id. Does nothing for the empty id, which a run has
  // if its client chose none.
  void Abort(const Id& id);

 private:
  absl::Mutex mutex_;
  std::multimap<Id, std::shared_ptr<EngineRun>> runs_ ABSL_GUARDED_BY(mutex_);
};

// Answers a call of Abort: ends those runs of the client whose ids are in `request_ids`.
template <typename Request, typename Response>
UnaryCall* AbortRuns(const CallServices& services, CallContext* context, const char* method,
                     const CallBytes* request, CallBytes* answer, RunRegistry* runs) {
  return AnswerInHandler<Response>(services, context, method, answer, [&](auto*) -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(const auto message, ParseRequest<Request>(request));
    const std::string client = ClientOf(services, *context);
    for (const std::string& id : message.request_ids()) runs->Abort({client, id});
    return absl::OkStatus();
  });
}

// Starts the sequences of an admitted request as one run, whose events come from `delivery`, and
// keeps the run and its model in `work`. If the request has a grammar, the run starts on another
// thread when the grammar is compiled. `runs` must outlive the call.
void StartRun(AdmittedInference admitted, EngineEvents events, WorkerPool* delivery,
              RunRegistry* runs, EngineWork* work);

}  // namespace taopd
