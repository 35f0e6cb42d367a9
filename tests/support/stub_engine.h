// A base class of engines for tests and benchmarks that answer each request immediately and have
// nothing to cancel, drain or measure.
#pragma once

#include <utility>
#include <vector>

#include "common/engine/engine.h"

namespace taopd::testing {

class StubEngine : public InferenceEngine {
 public:
  std::vector<RequestHandle> SubmitBatch(RequestBatch requests) override {
    std::vector<RequestHandle> handles;
    for (auto& [request, done] : requests)
      handles.push_back(SubmitOne(std::move(request), std::move(done)));
    return handles;
  }
  void Cancel(RequestHandle) override {}
  void Drain(absl::Time) override {}
  void ReleaseKvCache() override {}
  EngineLimits limits() const override { return {}; }
  EngineStats stats() const override { return {}; }

 private:
  virtual RequestHandle SubmitOne(InferenceRequest request, InferenceDone done) = 0;
};

}  // namespace taopd::testing
