// A scheduler that tests step by hand. Requests have the handles 1, 2, 3, ... in the order of the
// calls. Plans are compared as text. For example,
//   "1[0,5) 2[3,4)s 3[0,2)s+4,5"
// stands for rows 0 to 4 of request 1, row 3 of request 2, which samples, and rows 0 and 1 of
// request 3, from whose last row requests 4 and 5 sample as well.
#pragma once

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/scheduling/scheduler.h"
#include "tests/support/status_matchers.h"

namespace taopd {

class SchedulerFixture : public ::testing::Test {
 protected:
  static SchedulerLimits Limits(int64_t max_num_seqs, int64_t num_blocks, int64_t budget,
                                bool prefix_caching = true) {
    return SchedulerLimits{.max_num_seqs = max_num_seqs,
                           .num_blocks = num_blocks,
                           .block_tokens = 4,
                           .max_num_batched_tokens = budget,
                           .prefix_caching = prefix_caching};
  }
  void Make(const SchedulerLimits& limits) {
    scheduler_ = std::make_unique<Scheduler>(limits);
    next_ = 1;
  }

  // `length` distinct token ids from `first` on.
  static std::vector<int32_t> Prompt(int64_t length, int32_t first) {
    std::vector<int32_t> prompt(length);
    std::iota(prompt.begin(), prompt.end(), first);
    return prompt;
  }
  static InferenceRequest Generation(std::vector<int32_t> prompt, int64_t max_new_tokens = 4) {
    InferenceRequest request = {.token_ids = std::move(prompt), .sampling = SamplingParams()};
    request.sampling->max_new_tokens = max_new_tokens;
    return request;
  }
  static InferenceRequest Score(std::vector<int32_t> prompt, int64_t start = 1) {
    InferenceRequest request = {.token_ids = std::move(prompt), .score = ScoreParams()};
    request.score->start = start;
    return request;
  }

  Sequence* Add(InferenceRequest request) {
    auto sequence =
        std::make_unique<Sequence>(next_++, std::move(request), nullptr, std::vector<int32_t>());
    Sequence* const pointer = sequence.get();
    scheduler_->Add(std::move(sequence));
    return pointer;
  }
  // The prompts of these two share nothing.
  Sequence* AddGeneration(int64_t length, int64_t max_new_tokens = 4) {
    return Add(Generation(Prompt(length, static_cast<int32_t>(1000 * next_)), max_new_tokens));
  }
  Sequence* AddScore(int64_t length) {
    return Add(Score(Prompt(length, static_cast<int32_t>(1000 * next_))));
  }

  static std::string Text(const StepPlan& plan) {
    std::string text = plan.uncached ? "uncached" : "";
    for (const ScheduledRows& rows : plan.rows) {
      if (!text.empty()) text += ' ';
      text += std::to_string(rows.sequence->handle) + '[' + std::to_string(rows.first) + ',' +
              std::to_string(rows.first + rows.count) + ')' + (rows.samples ? "s" : "");
      char separator = '+';
      for (const Sequence* follower : rows.followers) {
        text += separator + std::to_string(follower->handle);
        separator = ',';
      }
    }
    return text;
  }

  // Completes a step in which every sampled token is `token`.
  void Complete(const StepPlan& plan, int32_t token = 7) {
    std::vector<Sequence*> members;
    for (const ScheduledRows& rows : plan.rows) {
      members.push_back(rows.sequence);
      members.insert(members.end(), rows.followers.begin(), rows.followers.end());
    }
    for (const ScheduledRows& rows : plan.rows) {
      if (!rows.samples || !rows.sequence->status.ok()) continue;
      rows.sequence->Append({token, 0.0f});
      for (Sequence* follower : rows.followers) follower->Append({token, 0.0f});
    }
    scheduler_->Advance(plan);
    for (Sequence* sequence : members) {
      if (sequence->finished || !sequence->status.ok()) scheduler_->Finish(sequence);
    }
  }

  // Runs one whole step and returns its plan.
  std::string Step() {
    const StepPlan plan = scheduler_->Schedule();
    const std::string text = Text(plan);
    Complete(plan);
    return text;
  }

  // Runs as many steps as there are plans, and expects these.
  void ExpectSteps(const std::vector<std::string>& plans) {
    for (size_t i = 0; i < plans.size(); ++i) EXPECT_EQ(Step(), plans[i]) << "step " << i;
  }

  std::vector<std::pair<RequestHandle, absl::StatusCode>> Dropped() {
    std::vector<std::pair<RequestHandle, absl::StatusCode>> dropped;
    for (const auto& [sequence, status] : scheduler_->TakeDropped())
      dropped.emplace_back(sequence->handle, status.code());
    return dropped;
  }

  std::unique_ptr<Scheduler> scheduler_;
  RequestHandle next_ = 1;
};

}  // namespace taopd
