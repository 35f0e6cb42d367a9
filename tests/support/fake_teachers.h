// Teachers for tests of the trainer: one that scores with a real engine in this process, and one
// that answers in another order than that of the requests.
#pragma once

#include <absl/synchronization/mutex.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/engine/engine.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd::testing {

// A TeacherClient that calls an InferenceEngine without a network.
class EngineTeacher final : public TeacherClient {
 public:
  explicit EngineTeacher(InferenceEngine* engine) : engine_(engine) {}
  absl::StatusOr<TeacherInfo> Connect(absl::Duration) override {
    TeacherInfo info;
    info.model_name = "engine";
    info.head_vocab_size = engine_->limits().vocab_size;
    info.max_model_len = engine_->limits().max_model_len;
    info.max_top_k = engine_->limits().max_logprobs;
    info.max_candidates = engine_->limits().max_candidates;
    info.max_dense_vocab_size = engine_->limits().max_dense_vocab_size;
    info.supports_temperature = true;
    return info;
  }
  void Score(TeacherRequest request,
             std::function<void(absl::StatusOr<TeacherScores>)> done) override {
    InferenceRequest inference;
    inference.request_id = request.request_id;
    inference.token_ids = request.token_ids;
    ScoreParams params;
    params.start = request.score_start;
    params.top_k = request.top_k;
    params.temperature = request.temperature;
    params.entropy = request.entropy;
    params.dense = request.dense;
    params.num_candidates = request.num_candidates;
    params.candidate_ids = std::move(request.candidate_ids);
    inference.score = params;
    engine_->Submit(std::move(inference),
                    [done = std::move(done)](absl::StatusOr<InferenceResult> result) {
                      if (!result.ok()) return done(result.status());
                      ScoreRows& rows = *result->score;
                      TeacherScores scores;
                      scores.top_k = rows.top_k;
                      scores.ids = std::move(rows.ids);
                      scores.log_probs = std::move(rows.log_probs);
                      scores.log_tail = std::move(rows.log_tail);
                      scores.sampled_log_probs = std::move(rows.sampled_log_probs);
                      scores.entropy = std::move(rows.entropy);
                      scores.candidate_log_probs = std::move(rows.candidate_log_probs);
                      scores.candidate_log_tail = std::move(rows.candidate_log_tail);
                      scores.dense_log_probs = std::move(rows.dense_log_probs);
                      done(std::move(scores));
                    });
  }
  TeacherClientStats stats() const override { return {}; }

 private:
  InferenceEngine* engine_;
};

// Holds requests back until `batch_size` have arrived, then passes them to `inner` in a shuffled
// order, one at a time.
class ShufflingTeacher final : public TeacherClient {
 public:
  ShufflingTeacher(TeacherClient* inner, size_t batch_size, uint64_t seed)
      : inner_(inner), batch_size_(batch_size), random_(seed) {}
  absl::StatusOr<TeacherInfo> Connect(absl::Duration timeout) override {
    return inner_->Connect(timeout);
  }
  void Score(TeacherRequest request,
             std::function<void(absl::StatusOr<TeacherScores>)> done) override {
    std::vector<Held> released;
    {
      absl::MutexLock lock(&mutex_);
      held_.emplace_back(std::move(request), std::move(done));
      if (held_.size() < batch_size_) return;
      released.swap(held_);
      random_.Shuffle(&released);
    }
    PassOn(std::make_shared<std::vector<Held>>(std::move(released)), 0);
  }
  TeacherClientStats stats() const override { return {}; }

 private:
  using Held = std::pair<TeacherRequest, std::function<void(absl::StatusOr<TeacherScores>)>>;
  void PassOn(std::shared_ptr<std::vector<Held>> held, size_t index) {
    if (index == held->size()) return;
    inner_->Score(std::move((*held)[index].first),
                  [this, held, index](absl::StatusOr<TeacherScores> scores) {
                    auto done = std::move((*held)[index].second);
                    PassOn(held, index + 1);
                    done(std::move(scores));
                  });
  }
  TeacherClient* inner_;
  const size_t batch_size_;
  absl::Mutex mutex_;
  RandomStream random_;
  std::vector<Held> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd::testing
