// Collects the results of requests in the order in which they arrive, and waits for them.
#pragma once

#include <absl/synchronization/mutex.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "common/engine/engine.h"

namespace taopd::testing {

using Result = absl::StatusOr<InferenceResult>;

class ResultBox {
 public:
  // Returns a callback that stores its result under `key`. A second call for a key counts as a
  // duplicate.
  InferenceDone Done(int key) {
    return [this, key](Result result) {
      absl::MutexLock lock(&mutex_);
      if (!results_.emplace(key, std::move(result)).second) ++num_duplicates_;
      order_.push_back(key);
    };
  }

  void WaitFor(size_t num_results) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [this, num_results]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return order_.size() >= num_results;
    };
    mutex_.Await(absl::Condition(&reached));
  }
  // Waits for the result of one key.
  const Result& Wait(int key) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [this, key]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return results_.contains(key);
    };
    mutex_.Await(absl::Condition(&reached));
    return results_.at(key);
  }

  bool Has(int key) {
    absl::MutexLock lock(&mutex_);
    return results_.contains(key);
  }
  size_t size() {
    absl::MutexLock lock(&mutex_);
    return order_.size();
  }
  std::vector<int> order() {
    absl::MutexLock lock(&mutex_);
    return order_;
  }
  int num_duplicates() {
    absl::MutexLock lock(&mutex_);
    return num_duplicates_;
  }

 private:
  absl::Mutex mutex_;
  std::map<int, Result> results_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> order_ ABSL_GUARDED_BY(mutex_);
  int num_duplicates_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Submits all requests together and waits for all results.
inline std::vector<Result> RunAll(InferenceEngine* engine, std::vector<InferenceRequest> requests) {
  ResultBox box;
  RequestBatch batch;
  for (size_t i = 0; i < requests.size(); ++i) {
    batch.emplace_back(std::move(requests[i]), box.Done(static_cast<int>(i)));
  }
  engine->SubmitBatch(std::move(batch));
  box.WaitFor(requests.size());
  EXPECT_EQ(box.num_duplicates(), 0);
  std::vector<Result> results;
  for (size_t i = 0; i < requests.size(); ++i) results.push_back(box.Wait(static_cast<int>(i)));
  return results;
}

inline InferenceRequest Generation(std::vector<int32_t> token_ids, int64_t max_new_tokens,
                                   float temperature = 1.0f, uint64_t seed = 0) {
  InferenceRequest request = {.token_ids = std::move(token_ids), .sampling = SamplingParams()};
  request.sampling->max_new_tokens = max_new_tokens;
  request.sampling->temperature = temperature;
  request.sampling->seed = seed;
  return request;
}

inline InferenceRequest Scoring(std::vector<int32_t> token_ids, int32_t top_k, int64_t start = 1) {
  InferenceRequest request = {.token_ids = std::move(token_ids), .score = ScoreParams()};
  request.score->top_k = top_k;
  request.score->start = start;
  return request;
}

}  // namespace taopd::testing
