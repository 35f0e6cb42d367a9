// The runs that a client can end by the id that it chose, and the start of a run.
#pragma once

#include <absl/synchronization/mutex.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/grpc/calls/engine_calls.h"
#include "server/grpc/vllm/inference_request.h"

namespace taopd {

// An id may occur more than once. Thread-safe.
class RunRegistry {
 public:
  void Add(const std::string& request_id, const std::shared_ptr<EngineRun>& run);
  void Remove(const std::string& request_id, const EngineRun* run);
  void Abort(const std::string& request_id);

 private:
  absl::Mutex mutex_;
  std::multimap<std::string, std::shared_ptr<EngineRun>> runs_ ABSL_GUARDED_BY(mutex_);
};

// Starts `requests`, which were made from an admitted one, as one run and keeps in `work` what
// belongs to it. If the request has a grammar, the run starts when that is compiled, on another
// thread. `runs` outlives the call.
void StartRun(AdmittedInference admitted, std::vector<InferenceRequest> requests,
              EngineEvents events, RunRegistry* runs, EngineWork* work);

}  // namespace taopd
