// An engine without a model, for tests of the scheduler. It executes plans on a memory that
// records, for every token of every block, the chain of tokens from which it was computed, and
// checks each plan against that memory.
//
// The "logits" are the chain's value. The next token is a function only of that value and the
// sequence's seed, so a result shows whether every row was computed from the right keys and values.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/engine/scheduling/scheduler.h"

namespace taopd {

class ScheduledEngine {
 public:
  enum class Failure { kNone, kOneSequence, kWholeStep };

  explicit ScheduledEngine(const SchedulerLimits& limits)
      : limits_(limits),
        scheduler_(limits),
        memory_(limits.num_blocks, std::vector<uint64_t>(limits.block_tokens, 0)) {}

  struct Result {
    absl::Status status;
    int64_t num_steps = 0;  // from Add to the end
  };

  RequestHandle Add(InferenceRequest request) {
    const RequestHandle handle = next_handle_++;
    auto sequence =
        std::make_unique<Sequence>(handle, std::move(request), nullptr, std::vector<int32_t>());
    live_.insert(sequence.get());
    born_[handle] = num_steps_;
    models_[sequence.get()].num_version_changes = num_version_changes_;
    scheduler_.Add(std::move(sequence));
    return handle;
  }

  Scheduler& scheduler() { return scheduler_; }
  const std::map<RequestHandle, Result>& results() const { return results_; }
  int64_t num_live() const { return static_cast<int64_t>(born_.size()); }
  const std::map<RequestHandle, int64_t>& born() const { return born_; }
  int64_t num_steps() const { return num_steps_; }
  // Returns the requests of which the last step computed rows.
  const std::vector<RequestHandle>& StepHandles() const { return step_handles_; }
  uint64_t digest() const { return digest_; }  // digest of all plans
  int64_t num_copies() const { return num_copies_; }
  int64_t num_forks() const { return num_forks_; }
  int64_t num_uncached_steps() const { return num_uncached_steps_; }
  int64_t num_checked_results() const { return num_checked_results_; }

  void SetWeightVersion(uint64_t version) {
    scheduler_.SetWeightVersion(version);
    num_version_changes_ += version != version_;
    version_ = version;
  }
  void ReleaseCache() {
    scheduler_.ReleaseCache();
    if (scheduler_.num_running() > 0) return;
    for (auto& block : memory_) std::fill(block.begin(), block.end(), kGarbage);
  }
  // One turn of the engine's loop. Returns the plan, whose pointers may dangle.
  StepPlan Step(Failure failure = Failure::kNone) {
    const std::set<Sequence*> decoding = DecodingSequences();
    const StepPlan plan = scheduler_.Schedule();
    ++num_steps_;
    Collect();
    CheckPlan(plan, decoding);
    step_handles_.clear();
    for (const ScheduledRows& rows : plan.rows) step_handles_.push_back(rows.sequence->handle);
    Execute(plan, failure);
    return plan;
  }

 private:
  using State = Sequence::Scheduling::State;
  static constexpr uint64_t kGarbage = 0xdeadbeef;

  struct Model {
    std::vector<uint64_t> chain;    // values after the computed tokens
    std::vector<int> times_scored;  // by row
    Sequence* leader = nullptr;
    int64_t num_version_changes = 0;  // the engine's count when the sequence was added
  };

  static uint64_t Mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b * 0x9e3779b97f4a7c15ULL)) * 0xff51afd7ed558ccdULL;
    return x ^ (x >> 29);
  }
  uint64_t Next(uint64_t before, int32_t token) const {
    return Mix(Mix(before, static_cast<uint64_t>(token) + 1), version_ + 7);
  }
  static int32_t Sampled(uint64_t logits, uint64_t seed) {
    return static_cast<int32_t>(Mix(logits, seed) % 3);
  }

  static bool IsRunning(const Sequence& sequence) {
    return sequence.scheduling.state == State::kRunning;
  }

  std::set<Sequence*> DecodingSequences() const {
    std::set<Sequence*> decoding;
    for (Sequence* sequence : live_) {
      if (!IsRunning(*sequence) || !sequence->scheduling.ends_with.ok()) continue;
      if (!sequence->generated.ids.empty() && sequence->num_computed + 1 == sequence->num_tokens())
        decoding.insert(sequence);
    }
    return decoding;
  }

  void Collect() {
    for (auto& [sequence, status] : scheduler_.TakeDropped()) Forget(sequence.get(), status);
    for (Sequence* sequence : live_) {
      // A preempted sequence has lost everything that was computed.
      if (sequence->scheduling.state == State::kPreempted) models_[sequence].chain.clear();
      models_[sequence].leader = sequence->scheduling.leader;
    }
  }

  void Forget(Sequence* sequence, const absl::Status& status) {
    ASSERT_TRUE(born_.contains(sequence->handle));
    results_[sequence->handle] = {status, num_steps_ - born_[sequence->handle]};
    born_.erase(sequence->handle);
    live_.erase(sequence);
    // One of the followers has taken over the computed tokens.
    for (Sequence* heir : live_) {
      if (models_[heir].leader == sequence && !heir->blocks.empty() && models_[heir].chain.empty())
        models_[heir].chain = models_[sequence].chain;
    }
    models_.erase(sequence);
  }

  void CheckPlan(const StepPlan& plan, const std::set<Sequence*>& decoding) {
    int64_t num_rows = 0;
    std::set<Sequence*> planned;
    for (const ScheduledRows& rows : plan.rows) {
      Sequence* const sequence = rows.sequence;
      num_rows += rows.count;
      ASSERT_GE(rows.count, 1);
      ASSERT_TRUE(planned.insert(sequence).second);
      ASSERT_LE(rows.first + rows.count, sequence->num_rows_needed());
      ASSERT_EQ(rows.samples,
                sequence->generates() && rows.first + rows.count == sequence->num_tokens());
      ASSERT_TRUE(rows.samples || rows.followers.empty());
      digest_ = Mix(Mix(Mix(digest_, sequence->handle), rows.first), rows.count);
      for (int32_t block : sequence->blocks) digest_ = Mix(digest_, block);
      for (Sequence* follower : rows.followers) {
        ASSERT_TRUE(planned.insert(follower).second);
        ASSERT_EQ(follower->request.token_ids, sequence->request.token_ids);
        ASSERT_EQ(follower->generated.ids.size(), 0u);
        digest_ = Mix(digest_, follower->handle);
      }
      if (plan.uncached) {
        ASSERT_TRUE(sequence->blocks.empty());
        if (sequence->generates()) {
          ASSERT_EQ(sequence->request.sampling->max_new_tokens, 1);
        }
        ASSERT_EQ(rows.count, sequence->num_rows_needed());
      } else {
        ASSERT_GE(static_cast<int64_t>(sequence->blocks.size()) * limits_.block_tokens,
                  rows.first + rows.count);
      }
    }
    if (!plan.uncached || plan.rows.size() > 1) {
      ASSERT_LE(num_rows, limits_.max_num_batched_tokens);
    }
    num_uncached_steps_ += plan.uncached;
    if (plan.uncached) {
      ASSERT_FALSE(last_uncached_ && pooled_work_) << "two steps without the pool in a row";
    } else {
      for (Sequence* sequence : decoding)
        ASSERT_TRUE(planned.contains(sequence) || !live_.contains(sequence) ||
                    !IsRunning(*sequence))
            << "no decode";
    }
    ASSERT_TRUE(!plan.empty() || !scheduler_.has_work()) << "work waits, and nothing is done";
    last_uncached_ = plan.uncached;
    pooled_work_ = std::any_of(live_.begin(), live_.end(),
                               [](Sequence* s) { return !s->scheduling.uncached; });

    std::set<int32_t> targets;
    std::set<int32_t> sources;
    for (const BlockCopy& copy : plan.copies) {
      ASSERT_TRUE(targets.insert(copy.to).second);
      sources.insert(copy.from);
    }
    for (int32_t target : targets) ASSERT_FALSE(sources.contains(target));
    CheckReferences();
  }

  void CheckReferences() {
    std::vector<int32_t> references(limits_.num_blocks, 0);
    for (Sequence* sequence : live_) {
      for (int32_t block : sequence->blocks) ++references[block];
    }
    int64_t num_in_use = 0;
    for (int64_t block = 0; block < limits_.num_blocks; ++block) {
      ASSERT_EQ(references[block], scheduler_.pool().num_references(block)) << block;
      num_in_use += references[block] > 0;
    }
    ASSERT_EQ(num_in_use, scheduler_.pool().num_in_use());
  }

  // Writes the chain of the rows to the memory, or garbage if the sequence fails.
  void Compute(const ScheduledRows& rows, bool pooled, bool fails) {
    Sequence* const sequence = rows.sequence;
    std::vector<uint64_t>& chain = models_[sequence].chain;
    const auto cell = [&](int64_t i) -> uint64_t& {
      return memory_[sequence->blocks[i / limits_.block_tokens]][i % limits_.block_tokens];
    };
    if (chain.empty()) {  // the tokens found in the cache
      uint64_t value = 0;
      for (int64_t i = 0; i < rows.first; ++i)
        chain.push_back(value = Next(value, sequence->token(i)));
      if (sequence->next_scored_row < sequence->num_prompt_tokens() - 1 && sequence->scores()) {
        ASSERT_LE(rows.first, sequence->next_scored_row);
      }
    }
    ASSERT_EQ(static_cast<int64_t>(chain.size()), rows.first);
    if (pooled) {
      for (int64_t i = 0; i < rows.first; ++i)
        ASSERT_EQ(cell(i), chain[i]) << "token " << i << " of request " << sequence->handle;
    }
    for (int64_t i = rows.first; i < rows.first + rows.count; ++i) {
      chain.push_back(Next(i == 0 ? 0 : chain[i - 1], sequence->token(i)));
      if (!pooled) continue;
      ASSERT_EQ(scheduler_.pool().num_references(sequence->blocks[i / limits_.block_tokens]), 1);
      cell(i) = fails ? kGarbage : chain[i];
    }
    if (!sequence->scores() || fails) return;
    std::vector<int>& times = models_[sequence].times_scored;
    times.resize(sequence->num_prompt_tokens(), 0);
    for (int64_t i = std::max(rows.first, sequence->next_scored_row);
         i < std::min(rows.first + rows.count, sequence->num_prompt_tokens() - 1); ++i)
      ++times[i];
  }

  // Fails a sequence and its followers before anything was computed. Blocks that nothing but the
  // sequence uses may have been written in part.
  void FailAll(const ScheduledRows& rows) {
    rows.sequence->status = absl::InternalError("failed");
    for (Sequence* follower : rows.followers) follower->status = absl::InternalError("failed");
    if (rows.sequence->num_computed > 0) return;
    for (int32_t block : rows.sequence->blocks) {
      if (scheduler_.pool().num_references(block) == 1)
        std::fill(memory_[block].begin(), memory_[block].end(), kGarbage);
    }
  }

  void Execute(const StepPlan& plan, Failure failure) {
    std::vector<Sequence*> members;
    for (const ScheduledRows& rows : plan.rows) {
      members.push_back(rows.sequence);
      members.insert(members.end(), rows.followers.begin(), rows.followers.end());
    }
    const bool all_fail = failure == Failure::kWholeStep;
    // Copies in reverse order, because the order must not matter. A failed step copies nothing.
    for (auto copy = plan.copies.rbegin(); copy != plan.copies.rend() && !all_fail; ++copy)
      memory_[copy->to] = memory_[copy->from];
    num_copies_ += static_cast<int64_t>(plan.copies.size());
    for (size_t r = 0; r < plan.rows.size(); ++r) {
      const ScheduledRows& rows = plan.rows[r];
      if (all_fail) {
        FailAll(rows);
        continue;
      }
      const bool fails = failure == Failure::kOneSequence && r == num_steps_ % plan.rows.size();
      Compute(rows, !plan.uncached, fails);
      if (fails) {
        rows.sequence->status = absl::InternalError("failed");
        models_[rows.sequence].chain.clear();
      }
      if (!rows.samples) continue;
      const uint64_t logits = fails ? kGarbage : models_[rows.sequence].chain.back();
      std::vector<Sequence*> sampling = rows.followers;
      if (!fails) sampling.push_back(rows.sequence);
      for (Sequence* sequence : sampling) {
        // A follower may or may not notice the failure itself.
        if (fails && sequence->handle % 2 == 0) sequence->status = absl::InternalError("failed");
        if (fails) continue;
        sequence->Append({Sampled(logits, sequence->request.sampling->seed), 0.0f});
        if (sequence == rows.sequence) continue;
        ++num_forks_;
        models_[sequence].chain = models_[rows.sequence].chain;
      }
    }
    scheduler_.Advance(plan);
    Collect();
    for (Sequence* sequence : members) {
      if (!sequence->finished && sequence->status.ok()) continue;
      if (sequence->status.ok()) CheckResult(*sequence);
      const std::unique_ptr<Sequence> owned = scheduler_.Finish(sequence);
      ASSERT_TRUE(owned->blocks.empty());
      Forget(sequence, sequence->status);
    }
    CheckReferences();
  }

  void CheckResult(const Sequence& sequence) {
    if (sequence.scores()) {
      const std::vector<int>& times = models_[const_cast<Sequence*>(&sequence)].times_scored;
      for (int64_t i = sequence.request.score->start - 1; i < sequence.num_prompt_tokens() - 1; ++i)
        ASSERT_EQ(times[i], 1) << "row " << i << " of request " << sequence.handle;
    }
    // Compares with the tokens that the sequence would generate alone, unless the weights changed
    // meanwhile.
    if (!sequence.generates()) return;
    ASSERT_EQ(static_cast<int64_t>(sequence.generated.ids.size()),
              sequence.request.sampling->max_new_tokens);
    if (models_[const_cast<Sequence*>(&sequence)].num_version_changes != num_version_changes_)
      return;
    ++num_checked_results_;
    uint64_t value = 0;
    for (int64_t i = 0; i + 1 < sequence.num_tokens(); ++i) {
      value = Next(value, sequence.token(i));
      if (i + 1 < sequence.num_prompt_tokens()) continue;
      ASSERT_EQ(sequence.token(i + 1), Sampled(value, sequence.request.sampling->seed));
    }
  }

  const SchedulerLimits limits_;
  Scheduler scheduler_;
  std::vector<std::vector<uint64_t>> memory_;
  std::map<Sequence*, Model> models_;
  std::set<Sequence*> live_;
  std::map<RequestHandle, int64_t> born_;
  std::map<RequestHandle, Result> results_;
  RequestHandle next_handle_ = 1;
  uint64_t version_ = 0;
  int64_t num_version_changes_ = 0;
  bool last_uncached_ = false;
  bool pooled_work_ = false;
  int64_t num_steps_ = 0;
  std::vector<RequestHandle> step_handles_;
  uint64_t digest_ = 0;
  int64_t num_copies_ = 0;
  int64_t num_forks_ = 0;
  int64_t num_uncached_steps_ = 0;
  int64_t num_checked_results_ = 0;
};

}  // namespace taopd
