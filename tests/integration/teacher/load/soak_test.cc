// Mixed clients on the real taopd-teacher for half an hour (TAOPD_SOAK_SECONDS): scores, streams,
// completions, broken connections, cancellations, nonsense. Nothing is lost, and neither memory nor
// descriptors nor threads grow.
#include <gmock/gmock.h>

#include <atomic>
#include <iostream>
#include <thread>

#include "tests/integration/teacher/load/process_usage.h"
#include "tests/integration/teacher/load/soak_clients.h"
#include "tests/integration/teacher/teacher_binary_fixture.h"

namespace taopd {
namespace {

using testing::ProcessUsage;
using testing::SoakClient;
using testing::SoakCounts;

constexpr int kNumClients = 8;
// From the end of the first quarter to the end. The allocator's arenas and the caches of the KV
// cache fill in that quarter.
constexpr int64_t kMaxGrowthBytes = 24 << 20;
// Beyond what the idle server has: sockets that the kernel still closes.
constexpr int64_t kMaxMoreDescriptors = 4;
// Beyond those after the first quarter: pools grow with the load, and gRPC's pollers come and go.
constexpr int64_t kMaxMoreThreads = 4;
constexpr absl::Duration kSettling = absl::Seconds(60);

class TeacherSoakTest : public testing::TeacherBinaryFixture {
 protected:
  // The value of a metric without labels of its own, summed over its series.
  double Metric(const std::string& name) {
    const std::string text = http_->Get("/metrics")->body;
    double sum = 0;
    for (size_t at = 0; (at = text.find("\n" + name, at)) != std::string::npos; ++at) {
      const size_t value = text.find(' ', at);
      sum += std::atof(text.c_str() + value);
    }
    return sum;
  }
  ProcessUsage Usage() const { return ProcessUsage::Of(teacher_->pid()); }
};

TEST_F(TeacherSoakTest, MixedClientsLeaveNothingBehind) {
  Start({"--kv-cache-memory-bytes", "64MiB"});
  const std::string expected = testing::FixedScore(stub_.get());
  const ProcessUsage idle = Usage();
  const absl::Duration length = absl::Seconds(testing::SecondsOf("TAOPD_SOAK_SECONDS", 1800));
  const absl::Time start = absl::Now();
  std::cout << "idle: " << idle.ToString() << std::endl;

  std::atomic<bool> stop{false};
  std::vector<std::unique_ptr<SoakClient>> clients;
  std::vector<std::thread> threads;
  for (int c = 0; c < kNumClients; ++c) {
    clients.push_back(std::make_unique<SoakClient>(*teacher_, static_cast<uint64_t>(c)));
    threads.emplace_back([&stop, client = clients.back().get()] {
      while (!stop && !::testing::Test::HasFatalFailure()) client->Act();
    });
  }
  constexpr int kReports = 20;
  ProcessUsage after_quarter, last;
  for (int report = 1; report <= kReports; ++report) {
    absl::SleepFor(start + length * report / kReports - absl::Now());
    ASSERT_TRUE(teacher_->Alive()) << teacher_->Errors();
    last = Usage();
    if (report == kReports / 4) after_quarter = last;
    std::cout << absl::Now() - start << ": " << last.ToString() << std::endl;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  SoakCounts total;
  for (const auto& client : clients) {
    total.num_acts += client->counts().num_acts;
    total.num_answers += client->counts().num_answers;
    total.num_cancels += client->counts().num_cancels;
    total.num_refused += client->counts().num_refused;
  }
  clients.clear();
  std::cout << total.num_acts << " acts: " << total.num_answers << " answers, " << total.num_cancels
            << " cancelled, " << total.num_refused << " refused" << std::endl;
  EXPECT_GT(total.num_answers, 0);
  EXPECT_LT(last.resident_bytes - after_quarter.resident_bytes, kMaxGrowthBytes);

  // Sockets and threads go when the server has noticed that their clients have.
  const absl::Time deadline = absl::Now() + kSettling;
  while (Usage().num_descriptors > idle.num_descriptors + kMaxMoreDescriptors &&
         absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  const ProcessUsage end = Usage();
  std::cout << "idle again: " << end.ToString() << std::endl;
  EXPECT_LE(end.num_descriptors, idle.num_descriptors + kMaxMoreDescriptors);
  EXPECT_LE(end.num_threads, after_quarter.num_threads + kMaxMoreThreads);
  EXPECT_EQ(Metric("vllm:num_requests_running"), 0);
  EXPECT_EQ(Metric("vllm:num_requests_waiting{"), 0);
  EXPECT_EQ(testing::FixedScore(stub_.get()), expected);
  EXPECT_EQ(teacher_->Terminate(), 0);
}

}  // namespace
}  // namespace taopd
