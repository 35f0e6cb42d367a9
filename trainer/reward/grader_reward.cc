#include <atomic>
#include <utility>

#include "trainer/grading/grader.h"
#include "trainer/reward/reward_source.h"

namespace taopd {
namespace {

class GraderReward final : public RewardSource {
 public:
  GraderReward(std::unique_ptr<grading::Grader> grader, bool require_stop)
      : grader_(std::move(grader)), require_stop_(require_stop) {}

  absl::Status Connect(absl::Duration) override { return absl::OkStatus(); }

  void Reward(std::vector<RewardSample> samples,
              std::function<void(absl::StatusOr<std::vector<double>>)> done) override {
    std::vector<double> rewards;
    for (const RewardSample& sample : samples) {
      const bool counts = !sample.answer.empty() && !(require_stop_ && sample.is_truncated);
      const bool is_right =
          counts && grader_->Grade(sample.response, sample.answer, sample.source).correct;
      rewards.push_back(is_right ? 1 : 0);
    }
    ++num_requests_;
    done(std::move(rewards));
  }

  RewardStats stats() const override { return {.requests = num_requests_}; }

 private:
  const std::unique_ptr<grading::Grader> grader_;
  const bool require_stop_;
  std::atomic<int64_t> num_requests_{0};
};

}  // namespace

absl::StatusOr<std::unique_ptr<RewardSource>> MakeGraderReward(const RewardConfig& config) {
  TAOPD_ASSIGN_OR_RETURN(
      auto grader, Annotate(grading::Grader::Make(config.grader, config.answer_pattern), "reward"));
  return std::make_unique<GraderReward>(std::move(grader), config.require_stop);
}

}  // namespace taopd
