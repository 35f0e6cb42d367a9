// Tests of an engine that gives way to other work.
#include <atomic>
#include <thread>

#include "common/engine/torch_engine.h"
#include "tests/common/engine/markov_decoder.h"
#include "tests/common/engine/result_box.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// As an evaluation beside training does while there are rollouts.
TEST(EngineYields, NoStepBeginsWhileOtherWorkIsThere) {
  const auto decoder = std::make_shared<MarkovDecoder>(16);
  ResultBox box;  // outlives the engine
  std::atomic<bool> is_busy = true;
  std::atomic<int64_t> num_asked = 0;
  auto made = MakeTorchEngine(decoder, EngineOptions(), Clock::Real(), nullptr, [&] {
    ++num_asked;
    return is_busy.load();
  });
  ASSERT_OK(made);
  std::unique_ptr<InferenceEngine> engine = *std::move(made);
  const auto ask_again = [&] {
    for (const int64_t before = num_asked; num_asked < before + 3;) std::this_thread::yield();
  };
  engine->Submit(Generation({1}, 3), box.Done(0));
  ask_again();
  EXPECT_TRUE(decoder->calls().empty());
  is_busy = false;
  EXPECT_OK(box.Wait(0));

  InferenceRequest long_generation = Generation({1}, 60);
  long_generation.sampling->ignore_eos = true;
  // Work that comes during a step waits for this step alone.
  decoder->CloseGate();
  const size_t num_calls = decoder->calls().size();
  engine->Submit(long_generation, box.Done(1));
  decoder->WaitForCalls(num_calls + 1);
  is_busy = true;
  decoder->OpenGate();
  ask_again();
  EXPECT_EQ(decoder->calls().size(), num_calls + 1);
  EXPECT_FALSE(box.Has(1));
  engine.reset();
  EXPECT_ERROR(box.Wait(1), kUnavailable, "shutting down");
}

}  // namespace
}  // namespace taopd::testing
