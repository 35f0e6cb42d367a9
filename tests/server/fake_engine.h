// An InferenceEngine for tests of the protocols: a thread of its own, numbers from a small formula,
// and a switch that holds all work back.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/engine/engine.h"
#include "server/serving/serving_state.h"

namespace taopd::testing {

inline constexpr int kFakeVocab = 32;
inline constexpr EngineLimits kFakeLimits = {.vocab_size = kFakeVocab,
                                             .max_model_len = 64,
                                             .max_logprobs = 8,
                                             .max_candidates = 4,
                                             .max_dense_vocab_size = kFakeVocab,
                                             .max_num_seqs = 16,
                                             .max_queued_tokens = 100000};

// Log-probs of the token after `context`: distinct for every id, dependent on the last token and
// the length; the last id has probability 0.
inline std::vector<double> FakeLogProbs(const std::vector<int32_t>& token_ids, size_t position,
                                        double temperature) {
  std::vector<double> logits(kFakeVocab);
  for (int v = 0; v < kFakeVocab; ++v) {
    logits[v] = 0.25 *
                ((v * 7 + static_cast<int>(position) * 5 + token_ids[position - 1] * 3) % 31) /
                temperature;
  }
  logits[kFakeVocab - 1] = -std::numeric_limits<double>::infinity();
  double sum = 0;
  for (double logit : logits) sum += std::exp(logit);
  for (double& logit : logits) logit -= std::log(sum);
  return logits;
}

inline std::vector<int32_t> FakeOrder(const std::vector<double>& log_probs) {
  std::vector<int32_t> order(log_probs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return log_probs[a] > log_probs[b]; });
  return order;
}

inline double LogSumExp(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += std::exp(value);
  return std::log(sum);
}

inline ScoreRows FakeScore(const std::vector<int32_t>& token_ids, const ScoreParams& params) {
  ScoreRows rows;
  rows.num_rows = static_cast<int64_t>(token_ids.size()) - params.start;
  rows.top_k = params.top_k;
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const size_t t = static_cast<size_t>(params.start + r);
    const std::vector<double> log_probs = FakeLogProbs(token_ids, t, params.temperature);
    const std::vector<int32_t> order = FakeOrder(log_probs);
    std::vector<double> support, tail;
    for (int j = 0; j < kFakeVocab; ++j)
      (j < params.top_k ? support : tail).push_back(log_probs[order[j]]);
    for (int j = 0; j < params.top_k; ++j) {
      rows.ids.push_back(order[j]);
      rows.log_probs.push_back(static_cast<float>(log_probs[order[j]]));
    }
    rows.log_tail.push_back(static_cast<float>(LogSumExp(tail)));
    const double sampled = log_probs[token_ids[t]];
    rows.sampled_log_probs.push_back(static_cast<float>(sampled));
    if (params.rank) {
      rows.sampled_ranks.push_back(static_cast<int32_t>(std::count_if(
          log_probs.begin(), log_probs.end(), [&](double x) { return x >= sampled; })));
    }
    if (params.entropy) {
      double entropy = 0;
      for (double x : log_probs) entropy -= std::isinf(x) ? 0.0 : std::exp(x) * x;
      rows.entropy.push_back(static_cast<float>(entropy));
    }
    for (int m = 0; m < params.num_candidates; ++m) {
      rows.candidate_log_probs.push_back(
          static_cast<float>(log_probs[params.candidate_ids[r * params.num_candidates + m]]));
    }
    if (params.num_candidates > 0) {
      std::vector<double> rest = log_probs;
      for (int j = 0; j < params.top_k; ++j)
        rest[order[j]] = -std::numeric_limits<double>::infinity();
      for (int m = 0; m < params.num_candidates; ++m) {
        rest[params.candidate_ids[r * params.num_candidates + m]] =
            -std::numeric_limits<double>::infinity();
      }
      rows.candidate_log_tail.push_back(static_cast<float>(LogSumExp(rest)));
    }
    if (params.dense) {
      rows.dense_log_probs.insert(rows.dense_log_probs.end(), log_probs.begin(), log_probs.end());
    }
    if (params.support_stats) {
      rows.log_support_mass.push_back(static_cast<float>(LogSumExp(support)));
      rows.log_sum_exp.push_back(static_cast<float>(t));
    }
  }
  return rows;
}

// A request for so many tokens, whatever they are.
inline InferenceRequest MakeGeneration(std::vector<int32_t> token_ids, int64_t max_new_tokens) {
  return {.token_ids = std::move(token_ids),
          .sampling = SamplingParams{.max_new_tokens = max_new_tokens, .ignore_eos = true}};
}

// Generates greedily; id 0 ends a sequence. It ignores truncation and the fields that change
// logits. `before_token` is called with the index of each token, and ends the generation if it
// returns false.
inline GeneratedTokens FakeGenerate(
    const InferenceRequest& request,
    const std::function<bool(size_t)>& before_token = [](size_t) { return true; }) {
  std::vector<int32_t> token_ids = request.token_ids;
  const SamplingParams& params = *request.sampling;
  GeneratedTokens out;
  while (static_cast<int64_t>(out.ids.size()) < params.max_new_tokens) {
    if (!before_token(out.ids.size())) return out;
    const double temperature = params.temperature == 0.0f ? 1.0 : params.temperature;
    const std::vector<double> log_probs = FakeLogProbs(token_ids, token_ids.size(), temperature);
    const std::vector<int32_t> order = FakeOrder(log_probs);
    const int32_t id = order[0];
    const std::vector<double> raw = FakeLogProbs(token_ids, token_ids.size(), 1.0);
    out.ids.push_back(id);
    if (params.log_probs) out.log_probs.push_back(static_cast<float>(log_probs[id]));
    if (params.raw_log_probs) out.raw_log_probs.push_back(static_cast<float>(raw[id]));
    if (params.ranks) out.ranks.push_back(1);  // greedy
    const bool top_raw = params.top_log_probs_mode == LogProbsMode::kRaw;
    for (int j = 0; j < params.num_log_probs; ++j) {
      out.top_ids.push_back(order[j]);
      out.top_log_probs.push_back(static_cast<float>((top_raw ? raw : log_probs)[order[j]]));
    }
    token_ids.push_back(id);
    const auto& stops = params.stop_token_ids;
    const bool told_to_stop = request.should_stop && request.should_stop(id);
    const bool stops_here = told_to_stop || (id == 0 && !params.ignore_eos) ||
                            std::find(stops.begin(), stops.end(), id) != stops.end();
    if (stops_here) out.finish = FinishReason::kStop;
    if (request.on_token) {
      request.on_token(out,
                       stops_here || static_cast<int64_t>(out.ids.size()) == params.max_new_tokens);
    }
    if (stops_here) return out;
  }
  return out;
}

class FakeEngine final : public InferenceEngine {
 public:
  explicit FakeEngine(const EngineLimits& limits = kFakeLimits)
      : limits_(limits), thread_([this] { Run(); }) {}
  ~FakeEngine() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

  std::vector<RequestHandle> SubmitBatch(RequestBatch requests) override {
    std::vector<RequestHandle> handles;
    absl::Status refused;
    {
      absl::MutexLock lock(&mutex_);
      int64_t num_tokens = 0;
      for (const auto& [request, done] : requests)
        num_tokens += static_cast<int64_t>(request.token_ids.size());
      if (draining_) {
        refused = Unavailable("draining");
      } else if (queued_tokens_ + num_tokens > limits_.max_queued_tokens) {
        refused = ResourceExhausted("the queue is full");
      } else {
        for (auto& [request, done] : requests) {
          queued_tokens_ += static_cast<int64_t>(request.token_ids.size());
          seen_.push_back(request);
          seen_.back().should_stop = nullptr;
          seen_.back().on_token = nullptr;
          handles.push_back(++last_handle_);
          queue_.push_back({last_handle_, std::move(request), std::move(done)});
        }
        max_queued_ = std::max(max_queued_, queue_.size());
        return handles;
      }
    }
    for (auto& [request, done] : requests) done(refused);
    return std::vector<RequestHandle>(requests.size(), 0);
  }
  void Cancel(RequestHandle handle) override {
    absl::MutexLock lock(&mutex_);
    ++num_cancels_;
    cancelled_[handle] = true;
  }
  void Drain(absl::Time deadline) override {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    auto empty = [this]()
                     ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return queue_.empty() && !busy_; };
    mutex_.AwaitWithDeadline(absl::Condition(&empty), deadline);
    abort_ = true;
    mutex_.Await(absl::Condition(&empty));
  }
  void ReleaseKvCache() override {}
  EngineLimits limits() const override { return limits_; }
  EngineStats stats() const override {
    absl::MutexLock lock(&mutex_);
    EngineStats stats = stats_;
    stats.num_waiting = static_cast<int64_t>(queue_.size());
    stats.queued_tokens = queued_tokens_;
    return stats;
  }

  // Nothing is answered while held, except cancellations.
  void Hold(bool hold) {
    absl::MutexLock lock(&mutex_);
    hold_ = hold;
  }
  void WaitForQueued(size_t count) {
    absl::MutexLock lock(&mutex_);
    auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return queue_.size() >= count; };
    mutex_.Await(absl::Condition(&reached));
  }
  void WaitForCancels(int count) {
    absl::MutexLock lock(&mutex_);
    auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_cancels_ >= count; };
    mutex_.Await(absl::Condition(&reached));
  }
  size_t max_queued() const {
    absl::MutexLock lock(&mutex_);
    return max_queued_;
  }
  // All requests so far, without their callbacks.
  std::vector<InferenceRequest> seen() const {
    absl::MutexLock lock(&mutex_);
    return seen_;
  }
  // Sets what stats() returns besides the queue.
  void SetStats(const EngineStats& stats) {
    absl::MutexLock lock(&mutex_);
    stats_ = stats;
  }
  // Called before each token of a generation, with its index, on the engine's thread.
  void BeforeToken(std::function<void(size_t)> before_token) {
    absl::MutexLock lock(&mutex_);
    before_token_ = std::move(before_token);
  }
  // Lets every generation from now on fail after num_tokens tokens.
  void FailAfter(size_t num_tokens, absl::Status status) {
    absl::MutexLock lock(&mutex_);
    fail_after_ = num_tokens;
    late_failure_ = std::move(status);
  }
  // Answers every request from now on with this.
  void FailWith(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    failure_ = std::move(status);
  }

 private:
  struct Item {
    RequestHandle handle;
    InferenceRequest request;
    InferenceDone done;
  };

  absl::Status Generate(const Item& item, InferenceResult* result) {
    std::function<void(size_t)> before_token;
    std::optional<size_t> fail_after;
    absl::Status failure;
    {
      absl::MutexLock lock(&mutex_);
      before_token = before_token_;
      fail_after = fail_after_;
      failure = late_failure_;
    }
    bool failed = false;
    result->generated = FakeGenerate(item.request, [&](size_t index) {
      if (before_token) before_token(index);
      failed = fail_after && index >= *fail_after;
      return !failed;
    });
    return failed ? failure : absl::OkStatus();
  }

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (stopping_) return true;
    if (!hold_ || abort_) return !queue_.empty();
    return std::any_of(queue_.begin(), queue_.end(),
                       [this](const Item& item) { return cancelled_.count(item.handle) > 0; });
  }
  void Run() {
    for (;;) {
      Item item;
      absl::Status status;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &FakeEngine::HasWork));
        if (stopping_ && queue_.empty()) return;
        auto next = std::find_if(queue_.begin(), queue_.end(), [this](const Item& queued) {
          return cancelled_.count(queued.handle) > 0;
        });
        if (next == queue_.end()) next = queue_.begin();
        if (cancelled_.count(next->handle) > 0) {
          status = absl::CancelledError("cancelled");
        } else if (abort_ || stopping_) {
          status = Unavailable("drained");
        } else {
          status = failure_;
        }
        item = std::move(*next);
        queue_.erase(next);
        busy_ = true;
      }
      if (status.ok()) {
        InferenceResult result;
        if (item.request.score)
          result.score = FakeScore(item.request.token_ids, *item.request.score);
        const absl::Status failed =
            item.request.sampling ? Generate(item, &result) : absl::OkStatus();
        if (failed.ok()) {
          item.done(std::move(result));
        } else {
          item.done(failed);
        }
      } else {
        item.done(status);
      }
      item.done = nullptr;  // nothing of a request is left in an idle engine
      absl::MutexLock lock(&mutex_);
      busy_ = false;
      queued_tokens_ -= static_cast<int64_t>(item.request.token_ids.size());
      ++stats_.finished_requests;
      stats_.prompt_tokens += item.request.token_ids.size();
      stats_.last_step = absl::Now();
    }
  }

  const EngineLimits limits_;
  mutable absl::Mutex mutex_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  std::map<RequestHandle, bool> cancelled_ ABSL_GUARDED_BY(mutex_);
  RequestHandle last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t queued_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t max_queued_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_cancels_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<InferenceRequest> seen_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::function<void(size_t)> before_token_ ABSL_GUARDED_BY(mutex_);
  std::optional<size_t> fail_after_ ABSL_GUARDED_BY(mutex_);
  absl::Status late_failure_ ABSL_GUARDED_BY(mutex_);
  EngineStats stats_ ABSL_GUARDED_BY(mutex_);
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool abort_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Id v is the letter 'a' + v; id 30 is the first byte and 31 the second byte of U+00E9.
class FakeTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens) const override {
    std::vector<int32_t> ids;
    if (add_special_tokens) ids.push_back(1);
    for (char c : text) ids.push_back(c - 'a');
    return ids;
  }
  int64_t CountUnknownBytes(std::string_view) const override { return 0; }
  std::string Decode(const std::vector<int32_t>& ids, bool skip_special_tokens) const override {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == 30 && i + 1 < ids.size() && ids[i + 1] == 31) {
        text += "\xC3\xA9";
        ++i;
      } else if (ids[i] >= 30) {
        text += "\xEF\xBF\xBD";
      } else {
        text += TokenBytes(ids[i]);
      }
    }
    return text;
  }
  std::string TokenBytes(int32_t id) const override {
    return std::string(1, static_cast<char>('a' + id));
  }
  std::string IdToToken(int32_t id) const override { return TokenBytes(id); }
  std::optional<int32_t> TokenToId(std::string_view token) const override { return token[0] - 'a'; }
  int64_t vocab_size() const override { return kFakeVocab; }
  const std::string& hash() const override { return hash_; }

 private:
  const std::string hash_ = "tokenizer-hash";
};

// One id is a byte that no text in UTF-8 has, and the others are letters.
class BrokenTokenizer final : public FakeTokenizer {
 public:
  explicit BrokenTokenizer(int32_t broken) : broken_(broken) {}
  std::vector<int32_t> Encode(std::string_view text, bool) const override {
    return FakeTokenizer::Encode(text, /*add_special_tokens=*/false);
  }
  std::string Decode(const std::vector<int32_t>& ids, bool) const override {
    return TokenBytes(ids[0]);
  }
  std::string TokenBytes(int32_t id) const override {
    return id == broken_ ? "\xFF" : FakeTokenizer::TokenBytes(id);
  }

 private:
  const int32_t broken_;
};

struct FakeModel {
  std::shared_ptr<ServedModel> model;
  FakeEngine* engine;
};

inline FakeModel MakeFakeModel(bool with_tokenizer = false,
                               const EngineLimits& limits = kFakeLimits) {
  auto engine = std::make_unique<FakeEngine>(limits);
  FakeModel fake{std::make_shared<ServedModel>(), engine.get()};
  fake.model->limits = engine->limits();
  fake.model->engine = std::move(engine);
  if (with_tokenizer) fake.model->tokenizer = std::make_unique<FakeTokenizer>();
  fake.model->name = "fake";
  fake.model->root = "/models/fake";
  fake.model->revision = "0123456789abcdef";
  fake.model->dtype = "float32";
  fake.model->created_unix_s = 1755000000;
  return fake;
}

}  // namespace taopd::testing
