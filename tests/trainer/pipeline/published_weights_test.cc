// Tests of what the workers get for each version of the student's weights, and of what is left.
#include "trainer/pipeline/published_weights.h"

#include <absl/synchronization/mutex.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "common/io/safetensors/safetensors.h"
#include "tests/common/io/file_size_limit.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"

namespace taopd::testing {
namespace {

// Notes the weights that it gets, and whether their files are there.
class RecordingWorker final : public RolloutWorker {
 public:
  explicit RecordingWorker(bool compares_probe) : compares_probe_(compares_probe) {}
  const std::string& address() const override { return address_; }
  bool needs_probe() const override { return compares_probe_; }
  absl::Status Check(const RolloutNeeds&, const std::stop_token&) override {
    return absl::OkStatus();
  }
  absl::Status SetWeights(const PolicyWeights& weights, const std::stop_token&) override {
    EXPECT_OK(OpenSafetensorsModel(weights.directory).status());
    absl::MutexLock lock(&mutex_);
    got_.push_back(weights);
    return absl::OkStatus();
  }
  absl::StatusOr<WorkerRollout> Generate(const RolloutRequest&, const PolicyWeights&,
                                         const std::stop_token&) override {
    return absl::UnimplementedError("not in this test");
  }
  // Waits for the number-th weights.
  PolicyWeights Wait(size_t number) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return got_.size() >= number; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(30)));
    return got_.size() >= number ? got_[number - 1] : PolicyWeights();
  }

 private:
  const std::string address_ = "recording";
  const bool compares_probe_;
  absl::Mutex mutex_;
  std::vector<PolicyWeights> got_ ABSL_GUARDED_BY(mutex_);
};

TEST(PublishedWeights, AProbeIsComputedOnlyForWorkersThatCompareIt) {
  const std::shared_ptr<Decoder> student = MakeTinyStudent();
  for (const bool compares_probe : {false, true}) {
    SCOPED_TRACE(compares_probe);
    const TempDir dir;
    auto added = std::make_unique<RecordingWorker>(compares_probe);
    RecordingWorker* const worker = added.get();
    std::vector<std::unique_ptr<RolloutWorker>> workers;
    workers.push_back(std::move(added));
    RemoteRolloutEngine engine(std::move(workers), RolloutNeeds(), RemoteRolloutOptions());
    {
      PublishedWeights published(student.get(), &engine, dir.File("weights"));
      published.Take(3);
      const PolicyWeights first = worker->Wait(1);
      EXPECT_EQ(first.step, 3);
      EXPECT_TRUE(first.version.starts_with("step-3-")) << first.version;
      EXPECT_EQ(first.sums.size(), student->Parameters().size());
      EXPECT_EQ(first.probe.log_probs.empty(), !compares_probe);
      if (compares_probe) {
        EXPECT_EQ(first.probe.log_probs, MakeWeightProbe(student.get()).log_probs);
      }
      published.Take(4);
      worker->Wait(2);
      published.Take(3);  // as after a roll-back
      const PolicyWeights again = worker->Wait(3);
      EXPECT_EQ(again.version, first.version);
      EXPECT_NE(again.directory, first.directory) << "who lets go of one would remove the other";
      const FileSizeLimit full_disk(1024);
      published.Take(5);
      engine.Generate({{.prompt_ids = {1}, .policy_version = 5}}, [](int64_t, const auto& rollout) {
        EXPECT_ERROR(rollout, kAborted, "rollout.weights_dir: cannot write");
      });
    }
    EXPECT_FALSE(std::filesystem::exists(dir.File("weights"))) << "something is left";
  }
}

}  // namespace
}  // namespace taopd::testing
