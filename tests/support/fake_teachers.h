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
#include "common/engine/torch_engine.h"
#include "tests/support/status_matchers.h"
#include "trainer/teacher/engine_teacher_client.h"

namespace taopd::testing {

// Returns a client of an engine over the model in this process, which is connected.
inline std::unique_ptr<TeacherClient> MakeEngineTeacher(std::shared_ptr<Decoder> model) {
  auto start = [model]() -> absl::StatusOr<EngineTeacherClient::Started> {
    EngineTeacherClient::Started started;
    TAOPD_ASSIGN_OR_RETURN(started.engine, MakeTorchEngine(model, EngineOptions()));
    const EngineLimits limits = started.engine->limits();
    TeacherInfo& info = started.info;
    info.model_name = "engine";
    info.head_vocab_size = limits.vocab_size;
    info.max_model_len = limits.max_model_len;
    info.max_top_k = limits.max_logprobs;
    info.max_candidates = limits.max_candidates;
    info.max_dense_vocab_size = limits.max_dense_vocab_size;
    info.supports_temperature = true;
    return started;
  };
  auto client = std::make_unique<EngineTeacherClient>(start);
  EXPECT_OK(client->Connect(absl::ZeroDuration()));
  return client;
}

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
