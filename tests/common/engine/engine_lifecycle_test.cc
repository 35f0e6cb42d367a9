// Tests of refusals, queue limits, cancellation, deadlines, drain and failures. The decoder is a
// fake whose gate stops the engine's thread at a chosen point.
#include <absl/synchronization/notification.h>

#include <atomic>
#include <thread>

#include "common/engine/torch_engine.h"
#include "tests/common/engine/markov_decoder.h"
#include "tests/common/engine/result_box.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

class EngineLifecycleTest : public ::testing::Test {
 protected:
  void SetUp() override { Make(); }
  // Tests with other options call this themselves.
  void Make(const EngineOptions& options = EngineOptions(), Clock* clock = Clock::Real()) {
    auto engine = MakeTorchEngine(decoder_, options, clock);
    ASSERT_OK(engine);
    engine_ = *std::move(engine);
  }
  // One sequence generates, and all others wait.
  static EngineOptions OneAtATime() { return {.max_num_seqs = 1}; }
  // Returns a request that does not end before 60 tokens, because eos is ignored.
  static InferenceRequest LongGeneration() {
    InferenceRequest request = Generation({1}, 60);
    request.sampling->ignore_eos = true;
    return request;
  }
  // Submits a request and stops the engine in its first step, until the gate is opened.
  RequestHandle SubmitAndStop(InferenceRequest request, int key) {
    decoder_->CloseGate();
    const RequestHandle handle = engine_->Submit(std::move(request), box_.Done(key));
    decoder_->WaitForCalls(1);
    return handle;
  }

  std::shared_ptr<MarkovDecoder> decoder_ = std::make_shared<MarkovDecoder>(16);
  ResultBox box_;  // these two outlive the engine
  ManualClock clock_;
  std::unique_ptr<InferenceEngine> engine_;
};

TEST_F(EngineLifecycleTest, RefusalsReachDoneBeforeSubmitReturns) {
  EXPECT_EQ(engine_->Submit(Generation({16}, 1), box_.Done(0)), 0u);
  ASSERT_TRUE(box_.Has(0));
  EXPECT_ERROR(box_.Wait(0), kInvalidArgument, "token_ids[0] is 16");
  EXPECT_EQ(engine_->Submit(Generation({1}, 64), box_.Done(1)), 0u);
  ASSERT_TRUE(box_.Has(1));
  EXPECT_ERROR(box_.Wait(1), kInvalidArgument, "max_model_len 64");
  EXPECT_EQ(engine_->stats().failed_requests, 2u);
}

TEST_F(EngineLifecycleTest, ABatchIsRefusedAsAWhole) {
  EXPECT_THAT(engine_->SubmitBatch(
                  {{Generation({1}, 1), box_.Done(0)}, {Generation({99}, 1), box_.Done(1)}}),
              ElementsAre(0, 0));
  EXPECT_ERROR(box_.Wait(0), kInvalidArgument, "request 1 of the same batch");
  EXPECT_ERROR(box_.Wait(1), kInvalidArgument, "token_ids[0] is 99");
  EXPECT_TRUE(decoder_->calls().empty());
  EXPECT_TRUE(engine_->SubmitBatch({}).empty());
}

TEST_F(EngineLifecycleTest, AFullQueueRefusesByTokensAndByRequests) {
  EngineOptions options = OneAtATime();
  options.max_queued_tokens = 11;
  options.max_queued_requests = 3;
  Make(options);
  // The request is longer than the whole queue, but the queue is empty.
  EXPECT_NE(SubmitAndStop(Generation(std::vector<int32_t>(12, 1), 1), 0), 0u);
  EXPECT_NE(engine_->Submit(Generation(std::vector<int32_t>(8, 1), 1), box_.Done(1)), 0u);
  EXPECT_EQ(engine_->stats().queued_tokens, 8);
  EXPECT_EQ(engine_->stats().num_waiting, 1);
  EXPECT_EQ(engine_->stats().num_running, 1);
  EXPECT_EQ(engine_->Submit(Generation({1, 1, 1, 1}, 1), box_.Done(2)), 0u);
  EXPECT_ERROR(box_.Wait(2), kResourceExhausted,
               "the queue holds 8 tokens: 4 more exceed max_queued_tokens 11");
  EXPECT_NE(engine_->Submit(Generation({1}, 1), box_.Done(3)), 0u);
  EXPECT_THAT(engine_->SubmitBatch(
                  {{Scoring({1, 2}, 1), box_.Done(4)}, {Scoring({1, 2}, 1), box_.Done(5)}}),
              ElementsAre(0, 0));
  EXPECT_ERROR(box_.Wait(5), kResourceExhausted, "max_queued_tokens");
  EXPECT_NE(engine_->Submit(Generation({1}, 1), box_.Done(6)), 0u);
  EXPECT_EQ(engine_->Submit(Generation({1}, 1), box_.Done(7)), 0u);
  EXPECT_ERROR(box_.Wait(7), kResourceExhausted, "max_queued_requests 3");
  decoder_->OpenGate();
  EXPECT_OK(box_.Wait(6));
  EXPECT_OK(box_.Wait(1));
}

TEST_F(EngineLifecycleTest, AClientOverItsShareIsRefusedAndANewcomerIsNot) {
  EngineOptions options = OneAtATime();
  options.max_queued_tokens = 8;
  options.max_client_queue_share = 0.5;
  Make(options);
  EXPECT_EQ(engine_->limits().max_client_queued_tokens, 4);
  int key = 0;
  const auto request = [](const std::string& client, size_t num_tokens) {
    InferenceRequest of_client = Generation(std::vector<int32_t>(num_tokens, 1), 1);
    of_client.client = client;
    return of_client;
  };
  const auto submit = [&](const std::string& client, size_t num_tokens) {
    return engine_->Submit(request(client, num_tokens), box_.Done(++key)) != 0;
  };
  EXPECT_NE(SubmitAndStop(request("flooder", 1), 0), 0u);  // it runs, and the queue is empty
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(submit("flooder", 1)) << i;
  EXPECT_FALSE(submit("flooder", 1));
  EXPECT_ERROR(box_.Wait(5), kResourceExhausted, "max_client_queue_share 0.5");
  EXPECT_TRUE(submit("polite", 2));
  EXPECT_FALSE(submit("polite", 2));
  EXPECT_FALSE(submit("third", 3));
  EXPECT_ERROR(box_.Wait(8), kResourceExhausted, "max_queued_tokens 8");
  EXPECT_EQ(engine_->stats().refused_client_share, 2u);
  EXPECT_EQ(engine_->stats().refused_queue_full, 1u);
  decoder_->OpenGate();
  EXPECT_OK(box_.Wait(6));
}

TEST_F(EngineLifecycleTest, CancelWaiting) {
  Make(OneAtATime());
  SubmitAndStop(LongGeneration(), 0);
  const RequestHandle waiting = engine_->Submit(Generation({2, 3}, 1), box_.Done(1));
  engine_->Cancel(waiting);
  engine_->Cancel(waiting);
  engine_->Cancel(12345);
  EXPECT_EQ(engine_->stats().queued_tokens, 0);
  decoder_->OpenGate();
  EXPECT_ERROR(box_.Wait(1), kCancelled, "waiting");
  EXPECT_OK(box_.Wait(0));
  EXPECT_THAT(box_.order(), ElementsAre(1, 0));  // at the next step, not after the long one
  for (const auto& call : decoder_->calls()) EXPECT_EQ(call.num_rows.size(), 1u);  // never computed
}

TEST_F(EngineLifecycleTest, CancelRunning) {
  const RequestHandle running = SubmitAndStop(LongGeneration(), 0);
  engine_->Cancel(running);
  decoder_->OpenGate();
  EXPECT_ERROR(box_.Wait(0), kCancelled, "running");
  EXPECT_EQ(decoder_->calls().size(), 1u);
  engine_->Cancel(running);  // unknown by now
  // Its blocks can be used again.
  EXPECT_OK(RunAll(engine_.get(), {Generation({1}, 3)})[0]);
}

TEST_F(EngineLifecycleTest, CancelFromACallback) {
  absl::Notification submitted;
  RequestHandle handle = 0;
  InferenceRequest request = LongGeneration();
  request.on_token = [&](const GeneratedTokens&, bool) {
    submitted.WaitForNotification();
    engine_->Cancel(handle);
  };
  handle = engine_->Submit(std::move(request), box_.Done(0));
  submitted.Notify();
  EXPECT_ERROR(box_.Wait(0), kCancelled, "running");
}

TEST_F(EngineLifecycleTest, SubmitFromDone) {
  absl::Notification done;
  engine_->Submit(Generation({1}, 1), [&](Result first) {
    EXPECT_OK(first);
    engine_->Submit(Generation({2}, 1), [&](Result second) {
      EXPECT_OK(second);
      done.Notify();
    });
  });
  done.WaitForNotification();
}

TEST_F(EngineLifecycleTest, ADeadlineDropsWhatWaitsAndWhatRuns) {
  Make(OneAtATime(), &clock_);
  InferenceRequest running = LongGeneration();
  running.deadline = clock_.Now() + absl::Seconds(5);
  SubmitAndStop(std::move(running), 0);
  InferenceRequest patient = Generation({3}, 1);
  patient.deadline = clock_.Now() + absl::Seconds(20);
  engine_->Submit(std::move(patient), box_.Done(1));
  InferenceRequest hasty = Generation({2}, 1);
  hasty.deadline = clock_.Now() + absl::Seconds(10);
  engine_->Submit(std::move(hasty), box_.Done(2));
  clock_.Advance(absl::Seconds(11));
  decoder_->OpenGate();
  EXPECT_ERROR(box_.Wait(2), kDeadlineExceeded, "waiting");
  EXPECT_ERROR(box_.Wait(0), kDeadlineExceeded, "running");
  EXPECT_OK(box_.Wait(1));
  for (const auto& call : decoder_->calls()) {
    EXPECT_FALSE(call.past_lens[0] == 0 && call.token_ids[0] == 2);  // never computed
  }
}

TEST_F(EngineLifecycleTest, DrainFinishesAcceptedWorkAndRefusesNew) {
  SubmitAndStop(LongGeneration(), 0);
  std::thread drain([&] { engine_->Drain(absl::InfiniteFuture()); });
  // Refusals begin when Drain has taken the lock; until then requests are accepted and completed.
  for (int key = 1;; ++key) {
    if (engine_->Submit(Generation({1}, 1), box_.Done(key)) == 0) {
      EXPECT_ERROR(box_.Wait(key), kUnavailable, "draining");
      break;
    }
    std::this_thread::yield();
  }
  EXPECT_FALSE(box_.Has(0));
  decoder_->OpenGate();
  drain.join();
  ASSERT_TRUE(box_.Has(0));  // delivered before Drain returned
  EXPECT_OK(box_.Wait(0));
  engine_->Drain(absl::InfiniteFuture());  // a second call has no effect
}

TEST_F(EngineLifecycleTest, DrainGivesUpAtItsDeadline) {
  Make(OneAtATime(), &clock_);
  SubmitAndStop(LongGeneration(), 0);
  engine_->Submit(Scoring({1, 2}, 1), box_.Done(1));
  clock_.Advance(absl::Seconds(3));
  engine_->Drain(clock_.Now() - absl::Seconds(1));  // returns although the model stands still
  decoder_->OpenGate();
  EXPECT_ERROR(box_.Wait(0), kUnavailable, "draining");
  EXPECT_ERROR(box_.Wait(1), kUnavailable, "draining");
  EXPECT_EQ(decoder_->calls().size(), 1u);
}

TEST_F(EngineLifecycleTest, DestructionAnswersEverything) {
  SubmitAndStop(LongGeneration(), 0);
  engine_->Submit(LongGeneration(), box_.Done(1));
  std::thread opener([&] { decoder_->OpenGate(); });
  engine_.reset();
  opener.join();
  // The first request can finish only if the destructor comes late.
  ASSERT_EQ(box_.size(), 2u);
  EXPECT_EQ(box_.num_duplicates(), 0);
  for (int key : {0, 1}) {
    const auto& result = box_.Wait(key);
    EXPECT_TRUE(result.ok() || absl::IsUnavailable(result.status())) << result.status().ToString();
  }
}

TEST_F(EngineLifecycleTest, AnExceptionFailsItsSequencesAndNoOthers) {
  decoder_->poison_id = 13;
  const auto results = RunAll(engine_.get(), {Scoring({13, 1}, 1), Scoring({1, 2}, 1),
                                              Generation({13}, 2), Generation({1, 2}, 2)});
  EXPECT_ERROR(results[0], kInternal, "token 13 is poison");
  EXPECT_OK(results[1]);  // in the same step
  EXPECT_ERROR(results[2], kInternal, "token 13 is poison");
  EXPECT_OK(results[3]);
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.failed_requests, 2u);
  EXPECT_EQ(stats.finished_requests, 2u);
  EXPECT_EQ(stats.num_running, 0);
  // The numbers are the same as in a step without the others.
  ASSERT_OK_AND_ASSIGN(const auto alone, RunAll(engine_.get(), {Generation({1, 2}, 2)})[0]);
  EXPECT_EQ(alone.generated->ids, results[3]->generated->ids);
}

TEST_F(EngineLifecycleTest, ALostModelEndsWhatRunsAndWhatWaits) {
  decoder_->poison_id = 13;
  decoder_->health = absl::UnavailableError("rank 1 is gone");
  SubmitAndStop(Generation({13}, 2), 0);
  engine_->Submit(Generation({1}, 2), box_.Done(1));
  decoder_->OpenGate();
  EXPECT_ERROR(box_.Wait(0), kInternal, "token 13 is poison");
  EXPECT_ERROR(box_.Wait(1), kUnavailable, "the device failed and needs a new process");
  EXPECT_EQ(engine_->Submit(Generation({1}, 2), box_.Done(2)), 0u);
  EXPECT_EQ(decoder_->calls().size(), 1u);
}

TEST_F(EngineLifecycleTest, AModelThatIsLostWhileSequencesRunAloneEndsTheRest) {
  decoder_->poison_id = 13;
  decoder_->num_poisons_until_lost = 2;  // the first is thrown by the step of all three
  const auto results =
      RunAll(engine_.get(), {Generation({1}, 2), Generation({13}, 2), Generation({2}, 2)});
  EXPECT_ERROR(results[0], kUnavailable, "the device failed and needs a new process");
  EXPECT_ERROR(results[1], kInternal, "token 13 is poison");
  EXPECT_ERROR(results[2], kInternal, "token 13 is poison");
  EXPECT_EQ(decoder_->calls().size(), 3u);  // the last sequence was not computed alone
  EXPECT_EQ(engine_->Submit(Generation({1}, 2), box_.Done(0)), 0u);
}

// Sequences of one prompt share its block until they write to it.
TEST_F(EngineLifecycleTest, AFailedCopyIsMadeAgainBeforeItsSequencesRunAlone) {
  decoder_->next_copy_fails = true;
  const auto results = RunAll(engine_.get(), {Generation({1, 2}, 3), Generation({1, 2}, 3)});
  for (const auto& result : results) ASSERT_OK(result);
  EXPECT_EQ(results[0]->generated->ids, results[1]->generated->ids);
  EXPECT_FALSE(decoder_->next_copy_fails);
  EXPECT_EQ(decoder_->num_copies, 1);
}

TEST_F(EngineLifecycleTest, LogitsThatAreNotFiniteFailTheirSequenceAlone) {
  decoder_->nan_id = 13;
  const auto results =
      RunAll(engine_.get(), {Generation({1, 13}, 2), Generation({13, 1}, 1), Scoring({1, 13, 4}, 2),
                             Scoring({13, 1, 4}, 2, /*start=*/2), Scoring({4, 13}, 2)});
  EXPECT_ERROR(results[0], kInternal, "not finite");
  EXPECT_OK(results[1]);
  EXPECT_ERROR(results[2], kInternal, "position 2");
  EXPECT_OK(results[3]);  // the row after token 13 comes before start
  EXPECT_OK(results[4]);  // the row after the last token is not requested

  InferenceRequest both = Generation({1, 13, 4}, 2);
  both.score = ScoreParams();
  EXPECT_ERROR(RunAll(engine_.get(), {both})[0], kInternal, "position 2");
  EXPECT_EQ(engine_->stats().num_running, 0);
}

TEST_F(EngineLifecycleTest, StatsCount) {
  std::vector<InferenceRequest> requests = {Scoring({1, 2, 3}, 1, 2), Generation({1, 2}, 5),
                                            Generation({1, 2}, 5)};
  for (size_t i : {1, 2}) requests[i].sampling->ignore_eos = true;
  for (const auto& result : RunAll(engine_.get(), requests)) EXPECT_OK(result);
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.prompt_tokens, 7u);
  EXPECT_EQ(stats.generated_tokens, 10u);
  EXPECT_EQ(stats.scored_rows, 1u);
  EXPECT_EQ(stats.finished_requests, 3u);
  EXPECT_EQ(stats.failed_requests, 0u);
  EXPECT_EQ(stats.num_running + stats.num_waiting + stats.queued_tokens, 0);
}

TEST_F(EngineLifecycleTest, TheHeartbeatStartsWithTheWork) {
  Make(EngineOptions(), &clock_);
  EXPECT_OK(RunAll(engine_.get(), {Generation({1}, 1)})[0]);
  clock_.Advance(absl::Hours(1));  // idle
  decoder_->CloseGate();
  engine_->Submit(LongGeneration(), box_.Done(0));
  EXPECT_EQ(engine_->stats().last_step, clock_.Now());
  decoder_->WaitForCalls(2);
  const absl::Time stuck_since = clock_.Now();
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(engine_->stats().last_step, stuck_since);  // the heartbeat of a stalled engine is old
  decoder_->OpenGate();
  EXPECT_OK(box_.Wait(0));
  EXPECT_EQ(engine_->stats().last_step, clock_.Now());
}

TEST_F(EngineLifecycleTest, TheEngineDoesNotStepInTheMiddleOfABatch) {
  Make({.max_num_seqs = 64});
  for (int round = 0; round < 20; ++round) {
    std::vector<InferenceRequest> requests;
    for (int i = 0; i < 40; ++i) requests.push_back(Generation({1 + i % 15, 2}, 1));
    const size_t calls_before = decoder_->calls().size();
    for (const auto& result : RunAll(engine_.get(), requests)) EXPECT_OK(result);
    const auto calls = decoder_->calls();
    ASSERT_EQ(calls.size(), calls_before + 1);     // one step computes them all
    EXPECT_EQ(calls.back().num_rows.size(), 15u);  // one per distinct prompt
  }
}

TEST_F(EngineLifecycleTest, OptionsAreChecked) {
  EXPECT_ERROR(MakeTorchEngine(decoder_, {.max_model_len = 65}), kInvalidArgument,
               "max_model_len 65 exceeds the model's max_position_embeddings 64");
  EXPECT_ERROR(MakeTorchEngine(decoder_, {.max_num_seqs = -3}), kInvalidArgument,
               "max_num_seqs -3");
}

// One layer with one head of 4 numbers: keys of 4 and values padded to 32 numbers, 32 tokens per
// block.
constexpr int64_t kBlockBytes = (4 + 32) * 4 * 32;

TEST_F(EngineLifecycleTest, AKvCacheThatIsTooSmallPreempts) {
  ASSERT_EQ(KvPages::BytesPerBlock(decoder_->config(), at::kFloat, KvPages::Layout::kKernel),
            kBlockBytes);
  EngineOptions options = {.kv_cache_bytes = 3 * kBlockBytes + 5, .prefix_caching = false};
  Make(options);
  std::vector<InferenceRequest> requests;
  for (int32_t i = 0; i < 7; ++i) {
    requests.push_back(Generation({1 + i, 2}, 40, 1.0f, i));
    requests.back().sampling->ignore_eos = true;
  }
  const auto results = RunAll(engine_.get(), requests);
  EXPECT_GT(engine_->stats().num_preempted, 0u);
  EXPECT_EQ(engine_->stats().num_kv_blocks, 3);
  EXPECT_EQ(engine_->stats().kv_blocks_in_use, 0);
  EXPECT_EQ(engine_->stats().prompt_tokens, 14u);  // once, although some were computed twice
  EXPECT_EQ(engine_->stats().generated_tokens, 280u);
  options.kv_cache_bytes = 100 * kBlockBytes;
  Make(options);
  const auto roomy = RunAll(engine_.get(), requests);
  EXPECT_EQ(engine_->stats().num_preempted, 0u);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_OK(results[i]);
    EXPECT_EQ(results[i]->generated->ids, roomy[i]->generated->ids);
  }
}

TEST_F(EngineLifecycleTest, WithoutAKvCacheTheEngineOnlyScores) {
  Make({.kv_cache_bytes = 0});
  EXPECT_FALSE(engine_->limits().can_generate);
  EXPECT_OK(RunAll(engine_.get(), {Scoring({1, 2}, 1)})[0]);
  EXPECT_EQ(engine_->Submit(Generation({1}, 1), box_.Done(0)), 0u);
  EXPECT_ERROR(box_.Wait(0), kFailedPrecondition, "kv_cache_bytes is 0");
}

// By default, a long model scores sequences of its whole length and generates sequences that fit in
// the cache.
TEST_F(EngineLifecycleTest, ASmallKvCacheLimitsGenerationAlone) {
  Make({.kv_cache_bytes = kBlockBytes + 31});
  EXPECT_EQ(engine_->limits().max_model_len, 64);
  EXPECT_EQ(engine_->limits().max_generation_len, 32);
  EXPECT_OK(RunAll(engine_.get(), {Scoring(std::vector<int32_t>(64, 1), 1)})[0]);
  EXPECT_OK(RunAll(engine_.get(), {Generation(std::vector<int32_t>(29, 1), 3)})[0]);
  EXPECT_EQ(engine_->Submit(Generation(std::vector<int32_t>(30, 1), 3), box_.Done(0)), 0u);
  EXPECT_ERROR(box_.Wait(0), kInvalidArgument, "max_generation_len 32");
}

TEST_F(EngineLifecycleTest, TheCacheIsGivenBackBetweenRequests) {
  const std::vector<int32_t> prompt(40, 3);
  for (int i = 0; i < 2; ++i) EXPECT_OK(RunAll(engine_.get(), {Generation(prompt, 1)})[0]);
  EXPECT_EQ(engine_->stats().prefix_hit_tokens, 32u);
  engine_->ReleaseKvCache();
  EXPECT_OK(RunAll(engine_.get(), {Generation(prompt, 1)})[0]);
  EXPECT_EQ(engine_->stats().prefix_hit_tokens, 32u);  // nothing was found
  EXPECT_OK(RunAll(engine_.get(), {Generation(prompt, 1)})[0]);
  EXPECT_EQ(engine_->stats().prefix_hit_tokens, 64u);
}

// Four threads submit 10,000 requests of all kinds and cancel a third of them at some time. Each is
// answered exactly once, and nothing is left behind.
TEST_F(EngineLifecycleTest, Soak) {
  decoder_->poison_id = 13;
  Make({.max_num_seqs = 32, .max_num_batched_tokens = 64});
  constexpr int kThreads = 4, kRequests = 2500;
  std::atomic<int> num_ok = 0, num_cancelled = 0, num_internal = 0, num_other = 0;
  std::vector<std::atomic<int>> answers(kThreads * kRequests);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      RandomStream random(17, "soak", {static_cast<uint64_t>(thread)});
      std::vector<RequestHandle> handles;
      for (int i = 0; i < kRequests; ++i) {
        std::vector<int32_t> ids(1 + random.NextBelow(4));
        for (int32_t& id : ids) id = static_cast<int32_t>(1 + random.NextBelow(12));
        if (random.NextBelow(500) == 0) ids[0] = 13;
        InferenceRequest request;
        if (random.NextBelow(3) == 0) {
          ids.push_back(1);
          request = Scoring(ids, 2);
        } else {
          request = Generation(ids, 1 + static_cast<int64_t>(random.NextBelow(6)), 1.0f,
                               random.NextU64());
        }
        const int key = thread * kRequests + i;
        handles.push_back(engine_->Submit(std::move(request), [&, key](Result result) {
          ++answers[key];
          ++(result.ok()                          ? num_ok
             : absl::IsCancelled(result.status()) ? num_cancelled
             : absl::IsInternal(result.status())  ? num_internal
                                                  : num_other);
        }));
        if (random.NextBelow(3) == 0) engine_->Cancel(handles[random.NextBelow(handles.size())]);
        if (random.NextBelow(3) == 0) engine_->Cancel(handles.back());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  engine_->Drain(absl::InfiniteFuture());
  for (const auto& count : answers) EXPECT_EQ(count, 1);
  EXPECT_EQ(num_ok + num_cancelled + num_internal, kThreads * kRequests);
  EXPECT_EQ(num_other, 0);
  EXPECT_GT(num_ok, 1000);
  EXPECT_GT(num_cancelled, 100);
  EXPECT_GT(num_internal, 0);
  const EngineStats stats = engine_->stats();
  EXPECT_EQ(stats.num_running + stats.num_waiting + stats.queued_tokens, 0);
  EXPECT_EQ(stats.finished_requests, static_cast<uint64_t>(num_ok));
  EXPECT_EQ(stats.failed_requests, static_cast<uint64_t>(num_cancelled + num_internal));
}

}  // namespace
}  // namespace taopd::testing
