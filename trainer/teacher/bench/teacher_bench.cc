#include "trainer/teacher/bench/teacher_bench.h"

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <cmath>

#include "common/base/random.h"

namespace taopd {
namespace {

int64_t DrawLength(const std::pair<int64_t, int64_t>& range, RandomStream* random) {
  const auto width = static_cast<uint64_t>(range.second - range.first + 1);
  return range.first + static_cast<int64_t>(random->NextBelow(width));
}

TeacherRequest MakeLoadRequest(const TeacherLoad& load, int64_t index) {
  RandomStream random(load.seed, "bench request", {static_cast<uint64_t>(index)});
  TeacherRequest request;
  request.request_id = Concat("bench-", index);
  request.score_start = DrawLength(load.prompt_tokens, &random);
  const int64_t num_tokens = request.score_start + DrawLength(load.response_tokens, &random);
  for (int64_t t = 0; t < num_tokens; ++t) {
    request.token_ids.push_back(
        1 + static_cast<int32_t>(random.NextBelow(static_cast<uint64_t>(load.vocab_size - 1))));
  }
  request.top_k = load.top_k;
  request.temperature = load.temperature;
  return request;
}

class Bench {
 public:
  Bench(const TeacherLoad& load, TeacherClient* client) : load_(load), client_(client) {}

  TeacherLoadResult Run() {
    start_ = absl::Now();
    end_ = load_.duration > absl::ZeroDuration() ? start_ + load_.duration : absl::InfiniteFuture();
    if (load_.requests_per_s > 0) {
      RunOpenLoop();
    } else {
      for (int64_t i = 0; i < load_.concurrency; ++i) SendNext();
    }
    absl::MutexLock lock(&mutex_);
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_open_ == 0; };
    mutex_.Await(absl::Condition(&idle));
    result_.elapsed = absl::Now() - start_;
    std::ranges::sort(result_.latencies);
    return std::move(result_);
  }

 private:
  bool IsOver(int64_t index, absl::Time now) const {
    return end_ < absl::InfiniteFuture() ? now >= end_ : index >= load_.num_requests;
  }

  void RunOpenLoop() {
    RandomStream gaps(load_.seed, "bench arrivals");
    absl::Time arrival = start_;
    for (int64_t index = 0; !IsOver(index, arrival); ++index) {
      absl::SleepFor(arrival - absl::Now());
      {
        absl::MutexLock lock(&mutex_);
        ++num_open_;
      }
      Send(index, arrival);
      arrival += absl::Seconds(-std::log1p(-gaps.NextUniform()) / load_.requests_per_s);
    }
  }

  // Sends the next request of the closed loop, if there is one.
  void SendNext() {
    int64_t index = 0;
    const absl::Time now = absl::Now();
    {
      absl::MutexLock lock(&mutex_);
      index = next_index_;
      if (IsOver(index, now)) return;
      ++next_index_;
      ++num_open_;
    }
    Send(index, now);
  }

  void Send(int64_t index, absl::Time begun) {
    TeacherRequest request = MakeLoadRequest(load_, index);
    const auto num_tokens = static_cast<int64_t>(request.token_ids.size());
    const int64_t num_scored = num_tokens - request.score_start;
    client_->Score(std::move(request), [=, this](absl::StatusOr<TeacherScores> scores) {
      Record(num_tokens, num_scored, absl::Now() - begun, scores.status());
      if (load_.requests_per_s <= 0) SendNext();
      absl::MutexLock lock(&mutex_);
      --num_open_;  // this comes last, because Run may return
    });
  }

  void Record(int64_t num_tokens, int64_t num_scored, absl::Duration latency,
              const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    if (status.ok()) {
      result_.latencies.push_back(latency);
      result_.num_tokens += num_tokens;
      result_.num_scored_tokens += num_scored;
      return;
    }
    const std::string name = absl::StatusCodeToString(status.code());
    ++result_.errors[name];
    result_.error_examples.emplace(name, std::string(status.message()));
  }

  const TeacherLoad load_;
  TeacherClient* const client_;
  absl::Time start_, end_;
  absl::Mutex mutex_;
  TeacherLoadResult result_ ABSL_GUARDED_BY(mutex_);
  int64_t next_index_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_open_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

int64_t TeacherLoadResult::num_requests() const {
  auto count = static_cast<int64_t>(latencies.size());
  for (const auto& [name, num] : errors) count += num;
  return count;
}

absl::Duration TeacherLoadResult::Percentile(double share) const {
  if (latencies.empty()) return absl::ZeroDuration();
  const double rank = std::ceil(share * static_cast<double>(latencies.size()));
  const auto index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  return latencies[std::min(index, latencies.size() - 1)];
}

TeacherLoadResult RunTeacherLoad(const TeacherLoad& load, TeacherClient* client) {
  return Bench(load, client).Run();
}

}  // namespace taopd
