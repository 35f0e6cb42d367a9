// Runs mixed clients on the real taopd-teacher for half an hour (TAOPD_SOAK_SECONDS): scores,
// streams, completions, chats, deadlines, broken connections, cancellations and nonsense. Nothing
// is lost, equal requests get equal answers, and the numbers of bytes, descriptors and threads do
// not grow.
#include <algorithm>
#include <atomic>
#include <iostream>
#include <thread>

#include "tests/integration/teacher/load/health_watch.h"
#include "tests/integration/teacher/load/soak_clients.h"
#include "tests/integration/teacher/teacher_binary_fixture.h"
#include "tests/support/process.h"
#include "tests/support/process_usage.h"

namespace taopd::testing {
namespace {

constexpr int kNumClients = 8;
// The growth from the peak of the first half, in which buffers and the allocator's arenas (one per
// thread) fill, to the peak of the second.
constexpr int64_t kMaxGrowthBytes = 24 << 20;
// Descriptors beyond those of the idle server: sockets that the kernel is still closing.
constexpr int64_t kMaxMoreDescriptors = 4;
// Threads beyond those after the first quarter: pools grow with the load, and gRPC's pollers come
// and go.
constexpr int64_t kMaxMoreThreads = 4;
constexpr absl::Duration kSettling = absl::Seconds(60);

// Makes a model with a tokenizer and a chat template.
std::string MakeModel(const TempDir& dir) {
  Process script(
      {"/usr/bin/env", "python3", SourcePath("tests/compat/tiny_model.py"), dir.File("model")},
      dir.File("output"));
  EXPECT_EQ(script.Wait(absl::Minutes(1)), 0) << script.Output();
  return dir.File("model");
}

class TeacherSoakTest : public TeacherBinaryFixture {
 protected:
  // Returns the value of a metric, summed over its series.
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

  TempDir dir_;
};

TEST_F(TeacherSoakTest, MixedClientsLeaveNothingBehind) {
  Start({"--kv-cache-memory-bytes", "64MiB"}, MakeModel(dir_));
  const std::string expected = FixedScore(stub_.get());
  const ProcessUsage idle = Usage();
  const absl::Duration length = absl::Seconds(NumberFromEnvironment("TAOPD_SOAK_SECONDS", 1800));
  const absl::Time start = absl::Now();

  std::atomic<bool> stop{false};
  FirstAnswers first_answers;
  std::vector<std::unique_ptr<SoakClient>> clients;
  std::vector<std::thread> threads;
  threads.emplace_back([&] { WatchHealth(teacher_->http_port(), stop); });
  for (int c = 0; c < kNumClients; ++c) {
    clients.push_back(
        std::make_unique<SoakClient>(*teacher_, &first_answers, static_cast<uint64_t>(c)));
    threads.emplace_back([&stop, client = clients.back().get()] {
      while (!stop && !::testing::Test::HasFatalFailure()) client->Act();
    });
  }
  constexpr int kReports = 20;
  ProcessUsage after_quarter;
  int64_t most_bytes[2] = {0, 0};  // peak of each half
  for (int report = 1; report <= kReports; ++report) {
    absl::SleepFor(start + length * report / kReports - absl::Now());
    ASSERT_TRUE(teacher_->Alive()) << teacher_->Errors();
    const ProcessUsage now = Usage();
    if (report == kReports / 4) after_quarter = now;
    int64_t& most = most_bytes[report <= kReports / 2 ? 0 : 1];
    most = std::max(most, now.resident_bytes);
    std::cout << absl::Now() - start << ": " << now.ToString() << std::endl;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  clients.clear();
  EXPECT_GT(first_answers.num_compared(), first_answers.num_new());
  EXPECT_LT(most_bytes[1] - most_bytes[0], kMaxGrowthBytes);

  // Sockets and threads disappear when the server has noticed that their clients are gone.
  EXPECT_TRUE(PollUntil(kSettling, [&] {
    return Usage().num_descriptors <= idle.num_descriptors + kMaxMoreDescriptors;
  })) << Usage().ToString();
  EXPECT_LE(Usage().num_threads, after_quarter.num_threads + kMaxMoreThreads);
  EXPECT_EQ(Metric("vllm:num_requests_running"), 0);
  EXPECT_EQ(Metric("vllm:num_requests_waiting{"), 0);
  EXPECT_EQ(FixedScore(stub_.get()), expected);
  EXPECT_EQ(teacher_->Terminate(), 0);
}

}  // namespace
}  // namespace taopd::testing
