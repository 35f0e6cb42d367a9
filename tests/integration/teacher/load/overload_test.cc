// The real taopd-teacher gets ten times as many requests as it can answer for a minute
// (TAOPD_OVERLOAD_SECONDS). Its memory stays flat, it refuses explicitly and says when to retry,
// and it answers every request that it accepts. Short requests get through, both those of the
// flooding client and those of another one.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "tests/integration/teacher/load/health_watch.h"
#include "tests/integration/teacher/teacher_binary_fixture.h"
#include "tests/support/process_usage.h"

namespace taopd::testing {
namespace {

using Status = grpc::StatusCode;

constexpr int kLongTokens = 480, kShortTokens = 8;
constexpr uint32_t kTopK = 16;
constexpr int kOverload = 10;
constexpr int kCapacityCalls = 400;  // calls of two clients together
// The growth from the peak of the first half, in which buffers and the allocator's arenas fill, to
// the peak of the second.
constexpr int64_t kMaxGrowthBytes = 24 << 20;
constexpr int kQueuedTokens = 24'000;
// The limit for a short request, in multiples of the time that the full queue needs. The request
// waits for its client's half of the queue and for the running step. The rest allows for other load
// on the machine.
constexpr double kMostQueueTimes = 3.0;
const char* const kFlooder = "key-of-flooder";
const char* const kOther = "key-of-another";

v1::ScoreRequest RequestOf(int num_tokens) {
  v1::ScoreRequest request;
  for (int t = 0; t < num_tokens; ++t) request.add_token_ids(static_cast<uint32_t>(1 + t % 500));
  request.set_score_start(1);
  request.set_top_k(kTopK);
  return request;
}

void SetKey(const char* key, grpc::ClientContext* context) {
  context->AddMetadata("authorization", std::string("Bearer ") + key);
}

bool IsWhole(const v1::ScoreResponse& response, int num_tokens) {
  return response.sampled_logprobs_size() == num_tokens - 1 &&
         response.ids_size() == (num_tokens - 1) * static_cast<int>(kTopK);
}

// Sends requests without waiting for answers, and counts the answers.
class OpenLoop {
 public:
  explicit OpenLoop(v1::Teacher::Stub* stub) : stub_(stub) {}

  void Send() {
    ++num_sent_;
    auto* call = new Call;
    call->request = RequestOf(kLongTokens);
    SetKey(kFlooder, &call->context);
    stub_->async()->Score(&call->context, &call->request, &call->response,
                          [this, call](const grpc::Status& status) {
                            Count(*call, status);
                            delete call;
                          });
  }
  // Waits until every request has its answer.
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_ended_ == num_sent_; });
  }
  int64_t num_sent() const { return num_sent_; }
  int64_t num(Status code) {
    std::lock_guard lock(mutex_);
    return by_code_[code];
  }
  int64_t num_without_pushback() const { return num_without_pushback_; }
  int64_t num_broken() const { return num_broken_; }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::ScoreRequest request;
    v1::ScoreResponse response;
  };

  void Count(const Call& call, const grpc::Status& status) {
    if (status.ok() && !IsWhole(call.response, kLongTokens)) ++num_broken_;
    if (status.error_code() == Status::RESOURCE_EXHAUSTED &&
        call.context.GetServerTrailingMetadata().count(kRetryPushbackKey) == 0)
      ++num_without_pushback_;
    std::lock_guard lock(mutex_);
    ++by_code_[status.error_code()];
    ++num_ended_;
    changed_.notify_all();
  }

  v1::Teacher::Stub* const stub_;
  std::atomic<int64_t> num_sent_{0}, num_without_pushback_{0}, num_broken_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Status, int64_t> by_code_;
  int64_t num_ended_ = 0;
};

class TeacherOverloadTest : public TeacherBinaryFixture {
 protected:
  // Returns the rate of long sequences per second for two clients that wait for their answers.
  double Capacity() {
    const absl::Time start = absl::Now();
    std::vector<std::thread> clients;
    for (int c = 0; c < 2; ++c) {
      clients.emplace_back([&] {
        for (int i = 0; i < kCapacityCalls / 2; ++i) {
          grpc::ClientContext context;
          SetKey(kFlooder, &context);
          v1::ScoreResponse response;
          EXPECT_TRUE(stub_->Score(&context, RequestOf(kLongTokens), &response).ok());
        }
      });
    }
    for (std::thread& client : clients) client.join();
    return kCapacityCalls / absl::ToDoubleSeconds(absl::Now() - start);
  }

  struct ShortOnes {
    int64_t num = 0, num_refusals = 0;
    absl::Duration longest;
  };
  // Scores one short request after another until `stop`.
  ShortOnes ScoreShortOnes(const char* key, const std::atomic<bool>& stop) {
    ShortOnes result;
    while (!stop) {
      const absl::Time start = absl::Now();
      grpc::ClientContext context;
      SetKey(key, &context);
      v1::ScoreResponse response;
      const grpc::Status status = stub_->Score(&context, RequestOf(kShortTokens), &response);
      result.longest = std::max(result.longest, absl::Now() - start);
      if (status.ok()) {
        EXPECT_TRUE(IsWhole(response, kShortTokens));
        ++result.num;
      } else {
        EXPECT_EQ(status.error_code(), Status::RESOURCE_EXHAUSTED) << status.error_message();
        ++result.num_refusals;
      }
    }
    return result;
  }
  void CheckShortOnes(const ShortOnes& ones, const char* whose, double queue_s) {
    EXPECT_GT(ones.num, 0) << whose;
    EXPECT_EQ(ones.num_refusals, 0) << whose;
    EXPECT_LT(absl::ToDoubleSeconds(ones.longest), kMostQueueTimes * queue_s) << whose;
  }

  // Returns the teacher's own count of successful answers.
  int64_t NumAnswered() {
    const std::string text =
        http_->Get("/metrics", {{"Authorization", std::string("Bearer ") + kOther}})->body;
    const std::string line = "taopd_teacher_requests_total{code=\"OK\",method=\"grpc/Score\"} ";
    const size_t at = text.find(line);
    return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + line.size());
  }
};

TEST_F(TeacherOverloadTest, TenTimesWhatItCanDo) {
  Start({"--max-queued-tokens", std::to_string(kQueuedTokens), "--api-key", kFlooder, "--api-key",
         kOther});
  const double capacity = Capacity();
  const absl::Duration length = absl::Seconds(NumberFromEnvironment("TAOPD_OVERLOAD_SECONDS", 60));
  OpenLoop load(stub_.get());
  std::atomic<bool> stop{false};
  ShortOnes of_flooder, of_other;
  std::thread beside_flood([&] { of_flooder = ScoreShortOnes(kFlooder, stop); });
  std::thread other([&] { of_other = ScoreShortOnes(kOther, stop); });
  std::thread health([&] { WatchHealth(teacher_->http_port(), stop); });
  const absl::Time start = absl::Now();
  int64_t most_bytes[2] = {0, 0};  // peak of each half
  for (absl::Duration passed; (passed = absl::Now() - start) < length;) {
    const double due = kOverload * capacity * absl::ToDoubleSeconds(passed);
    while (static_cast<double>(load.num_sent()) < due) load.Send();
    int64_t& most = most_bytes[passed < length / 2 ? 0 : 1];
    most = std::max(most, ProcessUsage::Of(teacher_->pid()).resident_bytes);
    absl::SleepFor(absl::Milliseconds(10));
  }
  load.Wait();
  stop = true;
  beside_flood.join();
  other.join();
  health.join();

  const int64_t num_ok = load.num(Status::OK), num_refused = load.num(Status::RESOURCE_EXHAUSTED);
  const double seconds = absl::ToDoubleSeconds(length);
  EXPECT_EQ(num_ok + num_refused, load.num_sent());
  EXPECT_EQ(load.num_broken(), 0);
  EXPECT_EQ(load.num_without_pushback(), 0);
  EXPECT_GT(num_refused, num_ok);
  // It answers what it accepts, and at least a third of what it could answer without the flood.
  const int64_t num_answers = kCapacityCalls + num_ok + of_flooder.num + of_other.num;
  // The teacher counts a call after the answer has left.
  PollUntil(absl::Seconds(20), [&] { return NumAnswered() >= num_answers; });
  EXPECT_EQ(NumAnswered(), num_answers);
  EXPECT_GT(static_cast<double>(num_ok), capacity * seconds / 3);
  EXPECT_LT(most_bytes[1] - most_bytes[0], kMaxGrowthBytes);
  const double queue_s = kQueuedTokens / (capacity * kLongTokens);
  CheckShortOnes(of_flooder, "the flooder", queue_s);
  CheckShortOnes(of_other, "another", queue_s);
  EXPECT_EQ(teacher_->Terminate(), 0);
}

}  // namespace
}  // namespace taopd::testing
